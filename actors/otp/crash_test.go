package otp_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// crashes are the ways in which a callback can fail to return.
func crashes() map[string]struct {
	do     func()
	reason error
} {
	type way = struct {
		do     func()
		reason error
	}
	return map[string]way{
		"panic":  {func() { panic(errBoom) }, errBoom},
		"goexit": {runtime.Goexit, otp.ErrGoexit},
	}
}

// misbehaving returns servers that do something in one callback when they are called with
// "now", and echo all other calls.
func misbehaving(do func()) map[string]otp.ChildSpec {
	with := func(now func(c *otp.Ctx), p puppet) otp.ChildSpec {
		p.call = func(c *otp.Ctx, _ otp.From, req any) (any, error) {
			if req != "now" {
				return req, nil
			}
			now(c)
			return otp.NoReply, nil
		}
		return server(p)
	}
	doCast, doInfo := func(*otp.Ctx, any) { do() }, func(*otp.Ctx, any) { do() }
	return map[string]otp.ChildSpec{
		"HandleCall":  with(func(*otp.Ctx) { do() }, puppet{}),
		"HandleCast":  with(func(c *otp.Ctx) { otp.Cast(c.Self(), 1) }, puppet{cast: doCast}),
		"HandleInfo":  with(func(c *otp.Ctx) { c.SendAfter(0, 1) }, puppet{info: doInfo}),
		"Async":       with(func(c *otp.Ctx) { c.Async(func(context.Context) any { do(); return nil }) }, puppet{}),
		"Terminate":   with(func(c *otp.Ctx) { c.Stop(errBoom) }, puppet{terminate: func(*otp.Ctx, error) { do() }}),
		"HandleBatch": {Server: func() otp.Server { return misbehavingBatcher{do: do} }},
	}
}

// misbehavingBatcher is a BatchServer of misbehaving.
type misbehavingBatcher struct {
	puppet
	do func()
}

func (b misbehavingBatcher) HandleBatch(_ *otp.Ctx, msgs []otp.Msg) {
	for _, m := range msgs {
		if m.Body == "now" {
			b.do()
		}
		m.From.Reply(m.Body, nil)
	}
}

// TestCrashWhileRunning crashes in every callback that runs after Init. The
// process ends with the crash as reason and its successor serves.
func TestCrashWhileRunning(t *testing.T) {
	t.Parallel()
	for how, crash := range crashes() {
		for where, spec := range misbehaving(crash.do) {
			t.Run(where+" "+how, func(t *testing.T) {
				t.Parallel()
				sys := otptest.New(t)
				root := one(t, sys, spec)
				p := sys.Whereis("root/child")
				_, err := otp.Call[any](t.Context(), p, "now")
				var down *otp.DownError
				require.ErrorAs(t, err, &down)
				require.ErrorIs(t, down.Reason, crash.reason)
				require.ErrorIs(t, otptest.Ended(t, p), crash.reason)

				next := otptest.Restarted(t, sys, p)
				require.Equal(t, "hello", must(otp.Call[string](t.Context(), next, "hello"))(t))
				require.True(t, root.Alive())
			})
		}
	}
}

func server(p puppet) otp.ChildSpec { return otp.ChildSpec{Server: p.make} }

// TestCrashWhileStarting crashes in everything that runs for a start. In a restart that is
// one more attempt; at boot, as any failure, it fails the tree.
func TestCrashWhileStarting(t *testing.T) {
	t.Parallel()
	starts := map[string]func(crash func()) otp.ChildSpec{
		"the server's start function": func(crash func()) otp.ChildSpec {
			return otp.ChildSpec{Server: func() otp.Server { crash(); return puppet{} }}
		},
		"the server's Init": func(crash func()) otp.ChildSpec {
			return server(puppet{init: func(*otp.Ctx) error { crash(); return nil }})
		},
		"the supervisor's start function": func(crash func()) otp.ChildSpec {
			return otp.ChildSpec{Supervisor: func() otp.SupSpec { crash(); return otp.SupSpec{} }}
		},
		"the supervisor's Init": func(crash func()) otp.ChildSpec {
			return otp.ChildSpec{Supervisor: func() otp.SupSpec { return otp.SupSpec{Init: func() error { crash(); return nil }} }}
		},
	}
	for where, spec := range starts {
		for how, crash := range crashes() {
			t.Run(where+" "+how, func(t *testing.T) {
				t.Parallel()
				var seen journal
				sys := otptest.New(t, seen.hook)
				var starts atomic.Int64
				one(t, sys, spec(func() {
					if n := starts.Add(1); n == 2 || n == 3 {
						crash.do()
					}
				}))
				p := sys.Whereis("root/child")
				otptest.Crash(t, p, errBoom)
				otptest.Restarted(t, sys, p)
				require.EqualValues(t, 4, starts.Load())
				failures := seen.of(otp.EventStartFailed)
				require.Len(t, failures, 2)
				require.ErrorIs(t, failures[1].Reason, crash.reason)
				require.Equal(t, "root/child", failures[1].Path)
			})
		}
	}
}

// TestCrashOfTask crashes in a task.
func TestCrashOfTask(t *testing.T) {
	t.Parallel()
	for how, crash := range crashes() {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			sys := otptest.New(t)
			var runs atomic.Int64
			one(t, sys, otp.ChildSpec{Task: func(ctx context.Context) error {
				if runs.Add(1) == 1 {
					crash.do()
				}
				return sleeper(ctx)
			}})
			otptest.Eventually(t, func() bool { return runs.Load() == 2 }, "the task is restarted")
		})
	}
}

// TestCrashInHooks crashes in functions that run in the supervisor's goroutine.
func TestCrashInHooks(t *testing.T) {
	t.Parallel()
	t.Run("Key", func(t *testing.T) {
		t.Parallel()
		sys := otptest.New(t)
		root := otptest.Tree(t, sys, otp.SupSpec{Strategy: otp.Dynamic, Children: []otp.ChildSpec{{
			ID: "x", Key: func(any) string { panic(errBoom) }, TaskArgs: sleeperWith,
		}}})
		_, err := otp.StartDynamic(t.Context(), root, nil)
		require.ErrorIs(t, err, errBoom)
		require.True(t, root.Alive())
	})
	t.Run("OnEvent", func(t *testing.T) {
		t.Parallel()
		sys := otptest.New(t, func(o *otp.Options) { o.OnEvent = func(otp.Event) { panic(errBoom) } })
		one(t, sys, otp.ChildSpec{Server: puppet{}.make})
		p := sys.Whereis("root/child")
		otptest.Crash(t, p, errBoom)
		otptest.Restarted(t, sys, p)
	})
}

// An Init that succeeds although its process has to end meanwhile has
// something to give back: Terminate runs, and the start fails.
func TestEndDuringInit(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	var reasons []error
	_, err := sys.Start("child", puppet{
		init:      func(c *otp.Ctx) error { c.Stop(errBoom); return nil },
		terminate: func(_ *otp.Ctx, reason error) { reasons = append(reasons, reason) },
	}.make)
	require.Equal(t, errBoom, err)
	require.Equal(t, []error{errBoom}, reasons)
	require.Empty(t, sys.Names())
}
