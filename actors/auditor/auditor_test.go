package auditor_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/auditor"
	"takt/actors/otp"
	"takt/store"
)

// checks is a database on which something is broken until it is repaired.
type checks struct {
	made   int
	broken int64
	err    error
	gate   chan struct{} // holds checks up, unless it is nil
}

func (c *checks) Check(ctx context.Context, repair bool) ([]store.Invariant, error) {
	if c.gate != nil {
		select {
		case <-c.gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c.made++
	i := store.Invariant{Name: "worker_held", Promise: "It is right.", Broken: c.broken}
	if repair {
		i.Repaired, c.broken = c.broken, 0
	}
	return []store.Invariant{i}, c.err
}

func watched(t *testing.T, f func(t *testing.T, c *checks, a *auditor.Auditor, sys *otp.System)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &checks{}
		sys := otp.New(otp.Options{Logger: zerolog.New(t.Output())})
		a := auditor.New(sys, c)
		_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{a.Spec()}})
		require.NoError(t, err)
		synctest.Wait()
		f(t, c, a, sys)
		sys.Shutdown(context.WithoutCancel(t.Context()))
		synctest.Wait()
	})
}

func TestItChecksAtTheStartAndEachMinute(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, c *checks, a *auditor.Auditor, _ *otp.System) {
		require.Equal(t, 1, c.made)
		require.Len(t, a.Last(), 1)
		c.broken = 2
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 2, c.made)
		require.EqualValues(t, 2, a.Last()[0].Broken)
	})
}

func TestOneCheckAtATimeOnDemandAndItsRepair(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, c *checks, a *auditor.Auditor, _ *otp.System) {
		c.broken, c.gate = 3, make(chan struct{})
		replies := make(chan []store.Invariant)
		for _, repair := range []bool{false, true} {
			go func() {
				found, err := a.Check(context.WithoutCancel(t.Context()), repair)
				if err == nil {
					replies <- found
				}
			}()
			synctest.Wait()
		}
		time.Sleep(5 * time.Minute) // timers find it busy
		c.gate <- struct{}{}
		require.Zero(t, (<-replies)[0].Repaired)
		c.gate <- struct{}{}
		require.EqualValues(t, 3, (<-replies)[0].Repaired)
		synctest.Wait()
		require.Equal(t, 3, c.made)
		close(c.gate)
	})
}

func TestAnOutageSuspendsItAndAFailureDoesNot(t *testing.T) {
	t.Parallel()
	watched(t, func(t *testing.T, c *checks, a *auditor.Auditor, sys *otp.System) {
		status := func() string { return fmt.Sprint(sys.Tree(false)[0].Children[0].Status) }
		c.err = store.NewUnavailable("away", nil)
		_, err := a.Check(t.Context(), false)
		require.Equal(t, store.Unavailable, store.CodeOf(err))
		synctest.Wait()
		require.Equal(t, "suspended", status())
		c.err = errors.New("a defect")
		_, err = a.Check(t.Context(), false)
		require.ErrorIs(t, err, c.err)
		c.err = nil
		_, err = a.Check(t.Context(), false)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, "running", status())
	})
}
