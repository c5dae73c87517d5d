package main

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func poolNamed(t *testing.T, l api.Heijunka, name string) api.HeijunkaPool {
	t.Helper()
	for _, p := range l.Pools {
		if p.Name == name {
			return p
		}
	}
	require.Fail(t, "no pool "+name)
	return api.HeijunkaPool{}
}

func TestLoadIsLevelledSeenAndChanged(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := s.controller("takt")
	ctx := t.Context()
	_, err := c.Client.List(ctx, client.Filter{})
	require.NoError(t, err)
	l, err := c.Client.Heijunka(ctx)
	require.NoError(t, err)
	require.Equal(t, 1200, l.Regulator.HardLimit)
	require.Positive(t, l.Regulator.Accepted)
	require.Positive(t, poolNamed(t, l, "query").Processed)

	// Parked polls hold neither token nor slot.
	const parked = 20
	answered := make(chan error, parked)
	for range parked {
		w := register(t, c, 1)
		go func() {
			_, err := c.Client.Poll(ctx, client.Poll{Token: w.token, Wait: 20 * time.Second})
			answered <- err
		}()
	}
	eventually(t, "the polls have parked", func() bool {
		plan, err := c.Client.Plan(ctx, client.Order{Action: "restart", Path: "heijunka"})
		require.NoError(t, err)
		l, err = c.Client.Heijunka(ctx)
		require.NoError(t, err)
		return plan.Requests == parked && l.Regulator.Load == 0
	})
	require.Zero(t, poolNamed(t, l, "fleet").Busy)

	// One regular request at once: of many clients somebody is refused.
	one, half := 2, 0.5
	_, err = c.Client.SetHeijunkaLimits(ctx, api.HeijunkaLimits{HardLimit: &one, SoftLimit: &one, Reserved: &half, For: "2h", Reason: "test"})
	require.NoError(t, err)
	l, err = c.Client.Heijunka(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, l.Regulator.HardLimit)
	require.Equal(t, 1, l.Regulator.RegularLimit)
	require.Contains(t, string(l.Changed), `"until"`)
	refusal := refused(t, c)
	require.Equal(t, store.Overloaded, store.CodeOf(refusal))
	require.Equal(t, http.StatusServiceUnavailable, client.StatusOf(refusal))
	require.GreaterOrEqual(t, client.RetryAfter(refusal), time.Second)

	// It holds over a restart of the process, until it is taken back.
	require.NoError(t, c.Stop(ctx, patience))
	for range parked {
		require.NoError(t, <-answered)
	}
	c = s.controller("takt")
	eventually(t, "the limits are in force again", func() bool {
		l, err := c.Client.Heijunka(ctx)
		return err == nil && l.Regulator.HardLimit == 2
	})
	l, err = c.Client.SetHeijunkaLimits(ctx, api.HeijunkaLimits{Reset: true, Reason: "test is over"})
	require.NoError(t, err)
	require.Equal(t, 1200, l.Regulator.HardLimit)

	changePools(t, c)
	audit, err := c.Client.Audit(ctx, 100)
	require.NoError(t, err)
	done := map[string]bool{}
	for _, e := range audit.Entries {
		require.NotEmpty(t, e.Reason)
		done[e.Action+" "+e.Target+": "+*e.Outcome] = true
	}
	for _, want := range []string{
		"stop heijunka/surge: done", "start heijunka/surge: done", "rebalance heijunka: done", "set heijunka/affinity/query: done",
		"scale heijunka/pools/query: The pool may have 3 to 40 workers, not 1000", "scale heijunka/pools/query: done", "set heijunka/limits: done",
	} {
		require.True(t, done[want], "%s is not in %v", want, done)
	}
}

// refused floods the controller until it refuses somebody.
func refused(t *testing.T, c *process.Controller) error {
	t.Helper()
	const floods = 16
	refusals := make(chan error, floods)
	ended := make(chan struct{})
	defer close(ended)
	for range floods {
		go func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if _, err := c.Client.List(t.Context(), client.Filter{}); err != nil {
					refusals <- err
					return
				}
			}
		}()
	}
	select {
	case err := <-refusals:
		return err
	case <-time.After(patience):
		require.Fail(t, "nobody was refused")
		return nil
	}
}

func changePools(t *testing.T, c *process.Controller) {
	t.Helper()
	ctx := t.Context()
	most, by, much := 40, 2, 1000
	before, err := c.Client.ScalePool(ctx, "query", api.HeijunkaScale{Max: &most, Reason: "test"})
	require.NoError(t, err)
	require.Equal(t, 40, poolNamed(t, before, "query").Max)
	eventually(t, "scaled by two", func() bool { // scaling itself may have been at it just now
		l, err := c.Client.ScalePool(ctx, "query", api.HeijunkaScale{By: &by, Reason: "test"})
		if store.CodeOf(err) == store.Conflict {
			return false
		}
		require.NoError(t, err)
		return poolNamed(t, l, "query").Workers >= 5
	})
	_, err = c.Client.ScalePool(ctx, "query", api.HeijunkaScale{Workers: &much, Reason: "test"})
	require.Equal(t, store.Conflict, store.CodeOf(err))
	_, err = c.Client.ScalePool(ctx, "query", api.HeijunkaScale{Workers: &much})
	require.Equal(t, store.InvalidArgument, store.CodeOf(err), "without a reason")
	_, err = c.Client.SetHeijunkaLimits(ctx, api.HeijunkaLimits{HardLimit: &much, For: "soon", Reason: "test"})
	require.Equal(t, store.InvalidArgument, store.CodeOf(err))
	l, err := c.Client.SetAffinity(ctx, api.HeijunkaAffinity{Domain: "query", Pools: []string{"query", "hook"}, Reason: "test"})
	require.NoError(t, err)
	require.Equal(t, []string{"query", "hook"}, l.Balance.Affinity["query"])
	dry, err := c.Client.Rebalance(ctx, "", true)
	require.NoError(t, err)
	require.NotEmpty(t, dry.Reason)
	eventually(t, "rebalanced", func() bool {
		_, err := c.Client.Rebalance(ctx, "test", false)
		if store.CodeOf(err) == store.Conflict { // a pool was scaled just now
			return false
		}
		require.NoError(t, err)
		return true
	})
	l, err = c.Client.Surge(ctx, api.HeijunkaSurge{Action: "start", For: "1h", Reason: "test"})
	require.NoError(t, err)
	require.True(t, l.Burst.Active)
	eventually(t, "surge workers are up", func() bool {
		l, err := c.Client.Heijunka(ctx)
		require.NoError(t, err)
		p := poolNamed(t, l, "hook")
		return p.Surge == 5 && p.Workers == p.Target
	})
	l, err = c.Client.Surge(ctx, api.HeijunkaSurge{Action: "stop", Reason: "test"})
	require.NoError(t, err)
	require.False(t, l.Burst.Active)
}
