package http

import (
	"context"
	"slices"
	"strings"

	"takt/http/api"
	"takt/store"
)

// runs reports whether a service is not left out. "" is takt itself.
func (c Config) runs(service string) bool {
	return service == "" || len(c.Services) == 0 || slices.Contains(c.Services, service)
}

// pageServices are the services that pages belong to, by the first part of their path.
var pageServices = map[string]string{ //nolint:gochecknoglobals // a table
	"fleet": api.ServiceBuilds, "queue": api.ServiceBuilds, "builds": api.ServiceBuilds,
	"throttle": api.ServiceThrottle, "deployments": api.ServiceDeployments,
}

// serviceOf returns the service that the route or page at path belongs to.
func serviceOf(path string) string {
	for _, r := range api.Routes() {
		if r.Path == path {
			return r.Service
		}
	}
	page, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return pageServices[page]
}

// navItem is a page in the navigation. Sub is a page below it, "-" for none.
type navItem struct{ Page, Title, Key, Sub string }

// navigation returns the pages of the services that run. The first one is where a login leads.
func navigation(cfg Config) []navItem {
	return slices.DeleteFunc([]navItem{
		{"fleet", "Fleet", "f", "worker"},
		{"queue", "Queue", "q", "-"},
		{"builds", "Builds", "b", "build"},
		{"tree", "Tree", "t", "order"},
		{"heijunka", "Heijunka", "h", "-"},
		{"throttle", "Throttle", "r", "-"},
		{"deployments", "Deployments", "d", "deployment"},
		{"audit", "Audit", "a", "-"},
	}, func(item navItem) bool { return !cfg.runs(pageServices[item.Page]) })
}

// noBuilds are the figures of a server without the service builds. None of its other methods
// is ever called.
type noBuilds struct{ Builds }

func (noBuilds) Counts(context.Context) (store.Counts, error) { return store.Counts{}, nil }
func (noBuilds) Totals(context.Context) (store.Totals, error) { return store.Totals{}, nil }
