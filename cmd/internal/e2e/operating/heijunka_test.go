package operating

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func poolNamed(t *testing.T, l api.Heijunka, name string) store.HeijunkaPool {
	t.Helper()
	for _, p := range l.Pools {
		if p.Name == name {
			return p
		}
	}
	require.Fail(t, "no pool "+name)
	return store.HeijunkaPool{}
}

func TestLoadIsLevelledSeenAndChanged(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	ctx := t.Context()
	_, err := c.Client.List(ctx, client.Filter{})
	require.NoError(t, err)
	l, err := client.Call(ctx, c.Client, api.ShowHeijunka, api.None{})
	require.NoError(t, err)
	require.Equal(t, 1200, l.Regulator.HardLimit)
	require.Positive(t, l.Regulator.Accepted)
	require.Positive(t, poolNamed(t, l, "query").Processed)

	// Parked polls hold neither token nor slot.
	const parked = 20
	answered := make(chan error, parked)
	for range parked {
		w := takttest.Register(t, c, 1)
		go func() {
			_, err := c.Client.Poll(ctx, client.Poll{Token: w.Token, Wait: 20 * time.Second})
			answered <- err
		}()
	}
	takttest.Eventually(t, "the polls have parked", func() bool {
		plan, err := c.Client.Plan(ctx, client.Order{Action: "restart", Path: "heijunka"})
		require.NoError(t, err)
		l, err = client.Call(ctx, c.Client, api.ShowHeijunka, api.None{})
		require.NoError(t, err)
		return plan.Requests == parked && l.Regulator.Load == 0
	})
	require.Zero(t, poolNamed(t, l, "fleet").Busy)

	// One regular request at once: of many clients somebody is refused.
	one, half := 2, 0.5
	_, err = client.Call(ctx, c.Client, api.ChangeHeijunkaLimits, api.HeijunkaLimits{HardLimit: &one, SoftLimit: &one, Reserved: &half, For: "2h", Reason: "test"})
	require.NoError(t, err)
	l, err = client.Call(ctx, c.Client, api.ShowHeijunka, api.None{})
	require.NoError(t, err)
	require.Equal(t, 2, l.Regulator.HardLimit)
	require.Equal(t, 1, l.Regulator.RegularLimit)
	require.Contains(t, string(l.Changed), `"until"`)
	refusal := refused(t, c)
	require.Equal(t, store.Overloaded, store.CodeOf(refusal))
	require.Equal(t, http.StatusServiceUnavailable, client.StatusOf(refusal))
	require.GreaterOrEqual(t, client.RetryAfter(refusal), time.Second)

	// It holds over a restart of the process, until it is taken back.
	require.NoError(t, c.Stop(ctx, takttest.Patience))
	for range parked {
		require.NoError(t, <-answered)
	}
	c = env.StartController("takt")
	takttest.Eventually(t, "the limits are in force again", func() bool {
		l, err := client.Call(ctx, c.Client, api.ShowHeijunka, api.None{})
		return err == nil && l.Regulator.HardLimit == 2
	})
	l, err = client.Call(ctx, c.Client, api.ChangeHeijunkaLimits, api.HeijunkaLimits{Reset: true, Reason: "test is over"})
	require.NoError(t, err)
	require.Equal(t, 1200, l.Regulator.HardLimit)

	l, err = client.Call(ctx, c.Client, api.ChangeHeijunkaAffinity, api.HeijunkaAffinity{Domain: "query", Pools: []string{"query", "hook"}, Reason: "test"})
	require.NoError(t, err)
	require.Equal(t, []string{"query", "hook"}, l.Balance.Affinity["query"])
	takttest.Eventually(t, "rebalanced", func() bool {
		_, err := client.Call(ctx, c.Client, api.RebalanceHeijunka, api.RebalanceHeijunkaIn{Body: api.Reason{Reason: "test"}})
		if store.CodeOf(err) == store.Conflict { // a pool was scaled just now
			return false
		}
		require.NoError(t, err)
		return true
	})
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
	case <-time.After(takttest.Patience):
		require.Fail(t, "nobody was refused")
		return nil
	}
}
