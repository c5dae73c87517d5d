package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

func TestLoadSettings(t *testing.T) {
	t.Parallel()
	d := storetest.New(t)
	l := postgres.NewHeijunka(d.DB)
	ctx := t.Context()
	s := must(l.HeijunkaSettings(ctx))(t)
	require.Zero(t, s)

	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	want := store.HeijunkaSettings{
		Limits:   &store.HeijunkaLimits{Soft: 1, Hard: 2, Reserved: 0.5, Expiry: store.Expiry{Until: &until}},
		Bounds:   map[string]store.HeijunkaBounds{"fleet": {Min: 1, Max: 9}},
		Affinity: map[string]store.HeijunkaAffinity{"query": {Pools: []string{"hook"}}},
		Burst:    &store.HeijunkaBurst{Enabled: true},
	}
	require.Equal(t, want, must(l.ChangeHeijunkaSettings(ctx, func(s *store.HeijunkaSettings) error { *s = want; return nil }))(t))
	s = must(l.HeijunkaSettings(ctx))(t)
	require.Equal(t, want, s)

	refused := store.NewError(store.InvalidArgument, "no")
	_, err := l.ChangeHeijunkaSettings(ctx, func(s *store.HeijunkaSettings) error { s.Burst = nil; return refused })
	require.Equal(t, refused, err)
	s = must(l.HeijunkaSettings(ctx))(t)
	require.Equal(t, want, s)

	// Two at once wait for each other: no change is lost.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			_, err := l.ChangeHeijunkaSettings(ctx, func(s *store.HeijunkaSettings) error { s.Limits.Soft++; return nil })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s = must(l.HeijunkaSettings(ctx))(t)
	require.Equal(t, 9, s.Limits.Soft)
}
