package http

import (
	"context"
	"slices"

	"takt/store"
)

// runs reports whether a service is not left out. "" is takt itself.
func (c Config) runs(service string) bool {
	return service == "" || len(c.Services) == 0 || slices.Contains(c.Services, service)
}

// noBuilds are the figures of a server without the service builds. None of its other methods
// is ever called.
type noBuilds struct{ Builds }

func (noBuilds) Counts(context.Context) (store.Counts, error) { return store.Counts{}, nil }
func (noBuilds) Totals(context.Context) (store.Totals, error) { return store.Totals{}, nil }
