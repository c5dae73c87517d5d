package otp_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// pool is a Dynamic supervisor of tasks.
func pool(spec otp.SupSpec) otp.SupSpec {
	spec.Strategy = otp.Dynamic
	spec.Children = []otp.ChildSpec{{
		ID: "task", Restart: otp.Temporary, Shutdown: time.Second,
		TaskArgs: sleeperWith,
	}}
	return spec
}

func TestMaxChildren(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	root := otptest.Tree(t, sys, pool(otp.SupSpec{MaxChildren: 2}))
	first := startTask(t, root, "a", waits)
	must(otp.StartDynamic(t.Context(), root, nil))(t)
	_, err := otp.StartDynamic(t.Context(), root, nil)
	require.ErrorIs(t, err, otp.ErrMaxChildren)
	require.ErrorIs(t, runTask(t.Context(), root, "b", waits), otp.ErrMaxChildren)
	require.Len(t, must(otp.WhichChildren(t.Context(), root))(t), 2)
	require.NoError(t, otp.TerminateProc(t.Context(), root, first))
	startTask(t, root, "b", waits)
}

func TestKeysNameInstances(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	root := otptest.Tree(t, sys, otp.SupSpec{Strategy: otp.Dynamic, Intensity: 3, Children: []otp.ChildSpec{{
		ID: "portal", Key: func(args any) string { return fmt.Sprint(args) },
		ServerArgs: func(args any) otp.Server {
			return puppet{call: func(*otp.Ctx, otp.From, any) (any, error) { return args, nil }}
		},
	}}})
	p := must(otp.StartDynamic(t.Context(), root, 7))(t)
	_, err := otp.StartDynamic(t.Context(), root, 7)
	var running *otp.AlreadyStartedError
	require.ErrorAs(t, err, &running)
	require.Same(t, p, running.Proc)
	otptest.Crash(t, p, errBoom)
	require.Equal(t, 7, must(otp.CallWait[int](t.Context(), sys.Ref("root/7"), time.Minute, "args"))(t))
}

// TestOrphans kills a supervisor: its children get its reason, the successors
// start under the same names while the orphans still end.
func TestOrphans(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		var reasons []error
		otptest.Tree(t, sys, otp.SupSpec{Children: []otp.ChildSpec{{ID: "s", Supervisor: func() otp.SupSpec {
			return otp.SupSpec{Children: []otp.ChildSpec{
				{ID: "slow", Server: puppet{terminate: func(_ *otp.Ctx, reason error) {
					<-time.After(time.Second)
					reasons = append(reasons, reason)
				}}.make},
				{ID: "deep", Supervisor: func() otp.SupSpec {
					return otp.SupSpec{Children: []otp.ChildSpec{{ID: "deaf", Server: puppet{
						terminate: func(c *otp.Ctx, _ error) { <-c.Context().Done() },
					}.make}}}
				}},
			}}
		}}}})
		old, slow, deaf := sys.Whereis("root/s"), sys.Whereis("root/s/slow"), sys.Whereis("root/s/deep/deaf")
		old.Kill()
		require.NotSame(t, old, otptest.Restarted(t, sys, old))
		require.True(t, slow.Alive())
		require.NotSame(t, slow, sys.Whereis("root/s/slow"))
		require.ErrorIs(t, otptest.Ended(t, slow), otp.ErrKilled)
		require.Equal(t, []error{otp.ErrKilled}, reasons)
		begin := time.Now()
		require.ErrorIs(t, otptest.Ended(t, deaf), otp.ErrKilled, "the orphaned supervisor still keeps deadlines")
		require.Less(t, time.Since(begin), 6*time.Second)
	})
}

func TestShutdownReport(t *testing.T) {
	t.Parallel()
	t.Run("stops roots in reverse order", func(t *testing.T) {
		t.Parallel()
		var seen journal
		sys := otptest.New(t, seen.hook)
		for _, name := range []string{"a", "b"} {
			must(sys.StartRoot(t.Context(), name, otp.SupSpec{Children: []otp.ChildSpec{{ID: "x", Task: sleeper}}}))(t)
		}
		require.Empty(t, sys.Shutdown(t.Context()))
		var order []string
		for _, e := range seen.of(otp.EventExit) {
			order = append(order, e.Path)
		}
		require.Equal(t, []string{"b/x", "b", "a/x", "a"}, order)
		_, err := sys.Start("late", puppet{}.make)
		require.ErrorIs(t, err, otp.ErrShutdown)
	})
	otptest.Bubble(t, "kills what is left at the deadline and names it", func(t otptest.T) {
		sys := otp.New(otp.Options{})
		held := make(chan struct{})
		must(sys.StartRoot(t.Context(), "root", otp.SupSpec{Children: []otp.ChildSpec{
			{ID: "a", Task: sleeper},
			{ID: "s", Supervisor: func() otp.SupSpec {
				return otp.SupSpec{Children: []otp.ChildSpec{{
					ID: "deaf", Shutdown: otp.Infinity,
					Task: func(context.Context) error { <-held; return nil },
				}}}
			}},
		}}))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		require.Equal(t, []string{"root/s/deaf"}, sys.Shutdown(ctx))
		require.Less(t, time.Since(begin), 2*time.Second)
		require.Empty(t, sys.Names())
		close(held)
		synctest.Wait()
		require.Empty(t, sys.Shutdown(t.Context()))
	})
}

func TestTree(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	root := otptest.Tree(t, sys, otp.SupSpec{Strategy: otp.RestForOne, Intensity: 5, Children: []otp.ChildSpec{
		{ID: "a", Server: puppet{}.make},
		{ID: "pool", Supervisor: func() otp.SupSpec { return pool(otp.SupSpec{}) }},
		{ID: "once", Restart: otp.Transient, Task: func(context.Context) error { return nil }},
	}})
	otptest.Eventually(t, func() bool { return sys.Tree(false)[0].Children[2].Status == otp.StatusTerminated }, "once has ended")
	otptest.Crash(t, sys.Whereis("root/a"), errBoom)
	must(otp.CountChildren(t.Context(), root))(t)
	for i := range 3 {
		startTask(t, sys.Ref("root/pool"), fmt.Sprint(i), waits)
	}
	otptest.Eventually(t, func() bool { return sys.Tree(false)[0].Children[2].Status == otp.StatusTerminated }, "once has ended again")

	n := sys.Tree(false)[0]
	require.Equal(t, "root", n.ID)
	require.Equal(t, otp.RestForOne, n.Strategy)
	require.Equal(t, 2, n.ChildCount)
	require.Len(t, n.Children, 3)
	a, pooled, once := n.Children[0], n.Children[1], n.Children[2]
	require.Equal(t, otp.StatusRunning, a.Status)
	require.Equal(t, 1, a.Restarts)
	require.Equal(t, "boom", a.LastExit)
	require.False(t, a.LastExitAt.IsZero())
	require.Equal(t, otp.Supervisor, pooled.Type)
	require.Equal(t, 3, pooled.ChildCount)
	require.Empty(t, pooled.Children, "instances are only counted")
	require.Equal(t, "root/once", once.Path)
	require.Equal(t, "normal", once.LastExit)

	instances := sys.Tree(true)[0].Children[1].Children
	require.Len(t, instances, 3)
	require.Equal(t, "root/pool/0", instances[0].Path)
	require.Equal(t, otp.StatusRunning, instances[0].Status)
}

// TestTreeOfBusySupervisor asks while the supervisor is stuck in a start.
func TestTreeOfBusySupervisor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		held := make(chan struct{})
		starts := 0
		one(t, sys, otp.ChildSpec{Server: puppet{init: func(*otp.Ctx) error {
			if starts++; starts > 1 {
				<-held
			}
			return nil
		}}.make})
		otptest.Crash(t, sys.Whereis("root/child"), errBoom)
		synctest.Wait()
		require.Equal(t, otp.StatusRestarting, sys.Tree(false)[0].Children[0].Status)
		close(held)
		synctest.Wait()
		require.Equal(t, otp.StatusRunning, sys.Tree(false)[0].Children[0].Status)
	})
}
