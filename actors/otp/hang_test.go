package otp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// TestHang hangs in every callback, deaf to every context. Stopping the child
// takes its shutdown time and the grace; then it is abandoned: its name is free,
// its caller is told, it counts as leaked until it returns.
func TestHang(t *testing.T) {
	t.Parallel()
	for where := range misbehaving(nil) {
		otptest.Bubble(t, where, func(t otptest.T) {
			var seen journal
			sys := otptest.New(t, seen.hook)
			held := make(chan struct{})
			child := misbehaving(func() { <-held })[where]
			child.Shutdown = time.Second
			root := one(t, sys, child)
			p := sys.Whereis("root/child")
			told := make(chan error, 1)
			go func() { _, err := otp.Call[any](t.Context(), p, "now"); told <- err }()
			synctest.Wait()

			begin := time.Now()
			require.NoError(t, otp.TerminateChild(t.Context(), root, "child"))
			require.Equal(t, time.Second+50*time.Millisecond, time.Since(begin))
			require.ErrorIs(t, p.Reason(), otp.ErrKilled)
			require.ErrorIs(t, <-told, otp.ErrKilled)
			require.Equal(t, []string{"root"}, sys.Names())
			require.Len(t, seen.of(otp.EventAbandoned), 1)
			otptest.Advance(time.Second)
			require.Equal(t, 1, sys.Leaked())

			_, err := otp.RestartChild(t.Context(), root, "child")
			require.NoError(t, err, "its successor can start")
			require.NoError(t, otp.TerminateChild(t.Context(), root, "child"))
			close(held)
			otptest.Advance(time.Second)
			require.Zero(t, sys.Leaked(), "it has returned")
			require.NotEmpty(t, seen.of(otp.EventReturned))
		})
	}
}

func TestHangInInit(t *testing.T) {
	t.Parallel()
	otptest.Bubble(t, "is bounded by the context of a root", func(t otptest.T) {
		sys := otptest.New(t)
		held, ran := make(chan struct{}), false
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errBoom)
		defer cancel()
		_, err := sys.StartRoot(ctx, "root", otp.SupSpec{Children: []otp.ChildSpec{
			{ID: "a", Task: sleeper},
			{ID: "b", Server: puppet{
				init: func(c *otp.Ctx) error { c.SendAfter(0, "run"); <-held; return nil },
				info: func(*otp.Ctx, any) { ran = true },
			}.make},
		}})
		require.ErrorIs(t, err, errBoom)
		otptest.Advance(time.Second)
		require.Equal(t, 1, sys.Leaked())
		require.Empty(t, sys.Names())
		close(held)
		synctest.Wait()
		require.Zero(t, sys.Leaked())
		require.False(t, ran, "it came too late to run")
	})
}

func TestHangOfTask(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		held := make(chan struct{})
		root := one(t, sys, otp.ChildSpec{Shutdown: time.Second, Task: func(context.Context) error { <-held; return nil }})
		require.NoError(t, otp.TerminateChild(t.Context(), root, "child"))
		require.Equal(t, 1, sys.Leaked())
		close(held)
		synctest.Wait()
		require.Zero(t, sys.Leaked())
	})
}

// TestHangAfterCrash hangs in Terminate of a process that ends by itself: its
// supervisor does not wait for it for ever.
func TestHangAfterCrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		held := make(chan struct{})
		one(t, sys, otp.ChildSpec{Shutdown: 3 * time.Second, Server: puppet{
			cast:      func(*otp.Ctx, any) { panic(errBoom) },
			terminate: func(*otp.Ctx, error) { <-held },
		}.make})
		p := sys.Whereis("root/child")
		begin := time.Now()
		require.True(t, otp.Cast(p, "crash"))
		otptest.Restarted(t, sys, p)
		require.Equal(t, 3*time.Second+50*time.Millisecond, time.Since(begin))
		close(held)
		synctest.Wait()
	})
}

// TestKillHonoured kills processes that look at their contexts: they end in
// time and nothing leaks.
func TestKillHonoured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sys := otptest.New(t)
		var cause error
		root := one(t, sys, otp.ChildSpec{Shutdown: time.Second, Server: puppet{
			terminate: func(c *otp.Ctx, _ error) { <-c.Context().Done(); cause = context.Cause(c.Context()) },
		}.make})
		require.NoError(t, otp.TerminateChild(t.Context(), root, "child"))
		require.ErrorIs(t, cause, otp.ErrKilled)
		require.Zero(t, sys.Leaked())
	})
}
