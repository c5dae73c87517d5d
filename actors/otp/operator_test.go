package otp_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// order returns the paths of one kind of events, in their order.
func (j *journal) order(kind otp.EventKind) []string {
	var paths []string
	for _, e := range j.of(kind) {
		paths = append(paths, e.Path)
	}
	return paths
}

// reset forgets what was collected.
func (j *journal) reset() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = nil
}

func TestRestartRunningAppliesTheStrategy(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name             string
		strategy         otp.Strategy
		stopped, started []string
	}{
		{"one_for_one restarts the child", otp.OneForOne, []string{"root/b"}, []string{"root/b"}},
		{
			"rest_for_one restarts those after it too", otp.RestForOne,
			[]string{"root/c", "root/b"},
			[]string{"root/b", "root/c"},
		},
		{
			"one_for_all restarts all", otp.OneForAll,
			[]string{"root/c", "root/b", "root/a"},
			[]string{"root/a", "root/b", "root/c"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var seen journal
			sys := otptest.New(t, seen.hook)
			spec := otp.SupSpec{Strategy: tc.strategy, Period: time.Second} // not one restart is allowed
			for _, id := range []string{"a", "b", "c"} {
				spec.Children = append(spec.Children, otp.ChildSpec{ID: id, Server: puppet{}.make})
			}
			root := otptest.Tree(t, sys, spec)
			seen.reset()
			p := must(otp.RestartRunning(t.Context(), root, "b"))(t)
			require.Same(t, sys.Whereis("root/b"), p)
			require.Equal(t, tc.stopped, seen.order(otp.EventExit))
			require.Equal(t, tc.started, seen.order(otp.EventStarted))
			for _, e := range seen.of(otp.EventExit) {
				want := error(otp.ErrShutdown)
				if e.Path == "root/b" {
					want = otp.Shutdown(otp.Operator)
				}
				require.Equal(t, want, e.Reason, e.Path)
			}
			require.True(t, root.Alive(), "it does not count")
			node := sys.Tree(false)[0].Children[1]
			require.Zero(t, node.Restarts)
			require.Equal(t, "shutdown: operator", node.LastExit)
			require.Equal(t, otp.StatusRunning, node.Status)
		})
	}
}

func TestRestartRunningOfAChildThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		held := make(chan struct{})
		hangs := true
		root := one(t, sys, otp.ChildSpec{Shutdown: time.Second, Server: puppet{terminate: func(*otp.Ctx, error) {
			if hangs {
				hangs = false
				<-held
			}
		}}.make})
		old := sys.Whereis("root/child")
		begin := time.Now()
		p := must(otp.RestartRunning(t.Context(), root, "child"))(t)
		require.Equal(t, time.Second+50*time.Millisecond, time.Since(begin), "its shutdown time and the grace")
		require.Equal(t, otp.ErrKilled, old.Reason())
		require.Same(t, p, sys.Whereis("root/child"))
		require.Equal(t, 1, sys.Leaked())
		close(held)
		synctest.Wait()
	})
}

func TestRestartRunningWhoseStartFails(t *testing.T) {
	t.Parallel()
	failing := func(times int) (otp.ChildSpec, *int) {
		starts := 0
		return otp.ChildSpec{Server: puppet{init: func(*otp.Ctx) error {
			if starts++; starts > 1 && starts <= 1+times {
				return errBoom
			}
			return nil
		}}.make}, &starts
	}
	t.Run("is retried, and the retry counts", func(t *testing.T) {
		t.Parallel()
		sys := otptest.New(t)
		spec, _ := failing(1)
		root := one(t, sys, spec)
		_, err := otp.RestartRunning(t.Context(), root, "child")
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, 7, must(otp.CallWait[int](t.Context(), sys.Ref("root/child"), time.Minute, 7))(t))
		require.Equal(t, 1, sys.Tree(false)[0].Children[0].Restarts)
	})
	t.Run("ends the supervisor when the retries are too many", func(t *testing.T) {
		t.Parallel()
		sys := otptest.New(t)
		spec, starts := failing(100)
		root := one(t, sys, spec)
		_, err := otp.RestartRunning(t.Context(), root, "child")
		require.ErrorIs(t, err, errBoom)
		require.ErrorIs(t, otptest.Ended(t, root), otp.ErrShutdown)
		require.Equal(t, 1+1+3, *starts, "once, by the operator, and three retries")
	})
}

func TestRestartRunningIsRefused(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	root := otptest.Tree(t, sys, otp.SupSpec{Children: []otp.ChildSpec{
		{ID: "stopped", Server: puppet{}.make},
		{ID: "once", Restart: otp.Temporary, Server: puppet{}.make},
		{ID: "pool", Supervisor: func() otp.SupSpec { return pool(otp.SupSpec{}) }},
	}})
	require.NoError(t, otp.TerminateChild(t.Context(), root, "stopped"))
	once := sys.Whereis("root/once")
	for id, want := range map[string]error{
		"nobody": otp.ErrNotFound, "stopped": otp.ErrNotRunning, "once": otp.ErrTemporary,
	} {
		_, err := otp.RestartRunning(t.Context(), root, id)
		require.ErrorIs(t, err, want, id)
	}
	require.True(t, once.Alive())
	_, err := otp.RestartRunning(t.Context(), sys.Ref("root/pool"), "task")
	require.ErrorIs(t, err, otp.ErrSimpleOneForOne)
}
