package otp_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

func TestTimersOfSlowServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		ticks, cancelled := 0, false
		var cancel func()
		must(sys.Start("", puppet{
			init: func(c *otp.Ctx) error {
				c.SendEvery(time.Second, "tick")
				cancel = c.SendAfter(5*time.Second, "gone")
				return nil
			},
			info: func(_ *otp.Ctx, msg any) {
				switch {
				case msg == "gone":
					cancelled = true
				case ticks == 0:
					<-time.After(10500 * time.Millisecond) // ten ticks come meanwhile, and the other timer
					cancel()
					ticks++
				default:
					ticks++
				}
			},
		}.make))(t)
		otptest.Advance(11700 * time.Millisecond)
		require.Equal(t, 2, ticks, "ticks that nobody handled are left out")
		require.False(t, cancelled, "a cancelled message must not come, though it was queued")
	})
}

func TestTimersDieWithTheIncarnation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		var got atomic.Int64
		one(t, sys, otp.ChildSpec{Server: puppet{
			init: func(c *otp.Ctx) error { c.SendAfter(10*time.Second, "x"); return nil },
			info: func(*otp.Ctx, any) { got.Add(1) },
		}.make})
		otptest.Advance(5 * time.Second)
		otptest.Crash(t, sys.Whereis("root/child"), errBoom)
		otptest.Advance(9 * time.Second)
		require.Zero(t, got.Load())
		otptest.Advance(2 * time.Second)
		require.EqualValues(t, 1, got.Load())
	})
}

func TestMonitor(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	start := func() *otp.Proc { return must(sys.Start("", puppet{}.make))(t) }
	a, b, c := start(), start(), start()
	otptest.Crash(t, b, errBoom)
	downs := make(chan otp.Down, 10)
	watcher := must(sys.Start("", puppet{
		init: func(x *otp.Ctx) error {
			x.Monitor(a)
			x.Monitor(b)
			x.Monitor(nil)
			x.Monitor(c)()
			return nil
		},
		info: func(_ *otp.Ctx, msg any) { downs <- msg.(otp.Down) }, // nothing else comes
	}.make))(t)
	reasons := map[*otp.Proc]error{}
	for range 2 {
		down := <-downs
		reasons[down.Proc] = down.Reason
	}
	require.Equal(t, errBoom, reasons[b], "it was dead already")
	require.Equal(t, otp.ErrNoProc, reasons[nil])
	otptest.Crash(t, c, errBoom)
	otptest.Crash(t, a, otp.Shutdown("done"))
	down := <-downs
	require.Equal(t, a, down.Proc)
	require.ErrorIs(t, down.Reason, otp.ErrShutdown)
	otptest.Crash(t, watcher, nil)
	require.Empty(t, downs, "a demonitored process is not reported")
}

func TestNames(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) (*otp.System, *otp.Proc) {
		t.Helper()
		sys := otptest.New(t)
		one(t, sys, otp.ChildSpec{Name: "the child", Server: puppet{}.make})
		return sys, sys.Whereis("the child")
	}
	t.Run("a name is taken once", func(t *testing.T) {
		t.Parallel()
		sys, p := setup(t)
		require.Equal(t, "root/child", p.Path())
		require.Equal(t, []string{"root", "the child"}, sys.Names())
		_, err := sys.Start("the child", puppet{}.make)
		var running *otp.AlreadyStartedError
		require.ErrorAs(t, err, &running)
		require.Same(t, p, running.Proc)
	})
	t.Run("a reference survives restarts", func(t *testing.T) {
		t.Parallel()
		sys, p := setup(t)
		ref := sys.Ref("the child")
		otptest.Crash(t, p, errBoom)
		require.Equal(t, 7, must(otp.CallWait[int](t.Context(), ref, time.Minute, 7))(t))
		require.NotSame(t, p, ref.Whereis())
	})
	t.Run("a name is not shown before Init has succeeded", func(t *testing.T) {
		t.Parallel()
		sys, _ := setup(t)
		must(sys.Start("slow", puppet{init: func(*otp.Ctx) error {
			if sys.Whereis("slow") != nil {
				return errBoom
			}
			return nil
		}}.make))(t)
	})
	t.Run("waiting ends with the context", func(t *testing.T) {
		t.Parallel()
		sys, _ := setup(t)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errBoom)
		defer cancel()
		_, err := sys.Ref("nobody").Await(ctx)
		require.ErrorIs(t, err, otp.ErrNoProc)
		require.ErrorIs(t, err, errBoom)
		_, err = otp.CallWait[int](t.Context(), sys.Ref("nobody"), time.Millisecond, 7)
		require.ErrorIs(t, err, otp.ErrNoProc)
	})
}

func TestSuspend(t *testing.T) {
	t.Parallel()
	var seen journal
	sys := otptest.New(t, seen.hook)
	one(t, sys, otp.ChildSpec{Server: puppet{call: func(c *otp.Ctx, _ otp.From, req any) (any, error) {
		if req == "" {
			c.Resume()
		} else {
			c.Suspend(req.(string)) // ours
		}
		return nil, nil
	}}.make})
	child := func() otp.Node { return sys.Tree(false)[0].Children[0] }
	for _, why := range []string{"database away", "database away", "", ""} {
		must(otp.Call[any](t.Context(), sys.Ref("root/child"), why))(t)
		require.Equal(t, why, child().Detail)
		require.Equal(t, map[bool]otp.Status{true: otp.StatusRunning, false: otp.StatusSuspended}[why == ""], child().Status)
	}
	require.Len(t, seen.of(otp.EventSuspended), 1)
	require.Len(t, seen.of(otp.EventResumed), 1)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		p := must(sys.Start("watched", puppet{}.make))(t)
		var seen []error
		p.Watch(func(reason error) {
			require.Nil(t, sys.Whereis("watched"), "the name is free")
			seen = append(seen, reason)
		})
		cancel := p.Watch(func(error) { t.Error("was taken back") })
		cancel()
		otptest.Advance(time.Second)
		require.Empty(t, seen)
		p.Kill()
		synctest.Wait()
		p.Watch(func(reason error) { seen = append(seen, reason) })
		require.Equal(t, []error{otp.ErrKilled, otp.ErrKilled}, seen, "at once of a dead process")
	})
}
