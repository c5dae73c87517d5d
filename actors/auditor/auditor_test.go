package auditor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/auditor"
	"takt/actors/otp"
	"takt/store"
)

// checks is a database on which something is broken.
type checks struct {
	mu     sync.Mutex // guards what follows
	made   int
	broken int64
	err    error
	gate   chan struct{} // holds checks up, unless it is nil
}

func (c *checks) Check(ctx context.Context) ([]store.Invariant, error) {
	c.mu.Lock()
	gate := c.gate
	c.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	return []store.Invariant{{Name: "worker_held", Promise: "It is right.", Broken: c.broken}}, c.err
}

func (c *checks) set(f func(c *checks)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c)
}

func (c *checks) count() (made int) {
	c.set(func(c *checks) { made = c.made })
	return made
}

// fixture is an auditor in a bubble of fake time.
type fixture struct {
	*testing.T
	*checks
	auditor *auditor.Auditor
	sys     *otp.System
	log     *bytes.Buffer
}

func watched(t *testing.T, f func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &checks{}
		log := &bytes.Buffer{}
		sys := otp.New(otp.Options{Logger: zerolog.New(io.MultiWriter(t.Output(), log))})
		a := auditor.New(sys, c)
		_, err := sys.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{a.Spec()}})
		require.NoError(t, err)
		synctest.Wait()
		f(&fixture{t, c, a, sys, log})
		sys.Shutdown(context.WithoutCancel(t.Context()))
		synctest.Wait()
	})
}

func TestItChecksAtTheStartAndEachMinute(t *testing.T) {
	t.Parallel()
	watched(t, func(w *fixture) {
		require.Equal(w, 1, w.count())
		require.Len(w, w.auditor.Last(), 1)
		w.set(func(c *checks) { c.broken = 2 })
		<-time.After(time.Minute)
		synctest.Wait()
		require.Equal(w, 2, w.count())
		require.EqualValues(w, 2, w.auditor.Last()[0].Broken)
		require.Regexp(w, `"level":"error".*"invariant":"worker_held".*It is right\.`, w.log.String())
		w.set(func(c *checks) { c.broken = 0 })
		<-time.After(time.Minute)
		synctest.Wait()
		require.Regexp(w, `"level":"info".*"invariant":"worker_held","broken":0`, w.log.String())
	})
}

func TestOneCheckAtATimeOnDemand(t *testing.T) {
	t.Parallel()
	watched(t, func(w *fixture) {
		w.set(func(c *checks) { c.broken, c.gate = 3, make(chan struct{}) })
		replies := make(chan []store.Invariant)
		for range 2 {
			go func() {
				found, err := w.auditor.Check(context.WithoutCancel(w.Context()))
				if err == nil {
					replies <- found
				}
			}()
			synctest.Wait()
		}
		<-time.After(3 * time.Minute) // timers find it busy
		for range 2 {
			w.gate <- struct{}{}
			require.EqualValues(w, 3, (<-replies)[0].Broken)
		}
		synctest.Wait()
		require.Equal(w, 3, w.count())
		close(w.gate)
	})
}

func TestAnOutageSuspendsItAndAFailureDoesNot(t *testing.T) {
	t.Parallel()
	watched(t, func(w *fixture) {
		status := func() string { return fmt.Sprint(w.sys.Tree(false)[0].Children[0].Status) }
		w.set(func(c *checks) { c.err = store.NewUnavailable("away", nil) })
		_, err := w.auditor.Check(w.Context())
		require.Equal(w, store.Unavailable, store.CodeOf(err))
		synctest.Wait()
		require.Equal(w, "suspended", status())
		w.set(func(c *checks) { c.err = nil })
		<-time.After(time.Second)
		synctest.Wait()
		require.Equal(w, "running", status(), "it tries again soon")
		w.set(func(c *checks) { c.err = errors.New("a defect") })
		_, err = w.auditor.Check(w.Context())
		require.ErrorContains(w, err, "a defect")
		synctest.Wait()
		require.Equal(w, "running", status())
	})
}

func TestARestartIsUnavailableToWhoWaits(t *testing.T) {
	t.Parallel()
	watched(t, func(w *fixture) {
		w.set(func(c *checks) { c.gate = make(chan struct{}) })
		failed := make(chan error)
		go func() { _, err := w.auditor.Check(context.WithoutCancel(w.Context())); failed <- err }()
		synctest.Wait()
		w.set(func(c *checks) { c.gate = nil })
		w.sys.Whereis("takt/orchestration/auditor").Exit(errors.New("killed"))
		require.Equal(w, store.Unavailable, store.CodeOf(<-failed))
		_, err := w.auditor.Check(w.Context())
		require.NoError(w, err, "the next one")
	})
}
