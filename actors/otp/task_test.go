package otp_test

import (
	"context"
	"errors"
	"path"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// runner is a supervisor of tasks in fake time.
type runner struct {
	*testing.T
	sys  *otp.System
	root *otp.Proc
	seen journal
}

// inRunner runs f with a supervisor of at most two tasks, which get a second to
// stop.
func inRunner(t *testing.T, name string, f func(r *runner)) {
	t.Helper()
	otptest.Bubble(t, name, func(t otptest.T) {
		r := &runner{T: t.T}
		r.sys = otptest.New(t, r.seen.hook)
		r.root = otptest.Tree(t, r.sys, pool(otp.SupSpec{MaxChildren: 2}))
		f(r)
	})
}

// run runs fn as a task.
func (r *runner) run(fn func(ctx context.Context) error) error {
	return runTask(r.Context(), r.root, "request", fn)
}

// start runs fn as a task in a goroutine, waits until that has nothing to do,
// and returns its process and what will become of it.
func (r *runner) start(fn func(ctx context.Context) error) (*otp.Proc, <-chan error) {
	r.Helper()
	result := make(chan error, 1)
	go func() { result <- r.run(fn) }()
	synctest.Wait()
	infos := must(otp.WhichChildren(r.Context(), r.root))(r)
	require.NotEmpty(r, infos)
	return infos[0].Proc, result
}

// active returns how many tasks the supervisor counts.
func (r *runner) active() int {
	r.Helper()
	n := must(otp.CountChildren(r.Context(), r.root))(r)
	return n.Active
}

// waits is a task that ends with its context.
func waits(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// ended checks that err tells of an end by order, with reason.
func (r *runner) ended(err, reason error) {
	r.Helper()
	var ended *otp.EndedError
	require.ErrorAs(r, err, &ended)
	require.ErrorIs(r, err, reason)
}

type contextKey struct{}

func TestRunTask(t *testing.T) {
	t.Parallel()

	inRunner(t, "runs in the caller's goroutine with the caller's context", func(r *runner) {
		ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), contextKey{}, "value"), time.Minute)
		defer cancel()
		var kept context.Context
		require.NoError(r, runTask(ctx, r.root, "GET /", func(inner context.Context) error {
			kept = inner
			require.Equal(r, "value", inner.Value(contextKey{}))
			want, _ := ctx.Deadline()
			got, _ := inner.Deadline()
			require.Equal(r, want, got)
			require.NoError(r, inner.Err())

			require.Equal(r, 1, r.active())
			node := r.sys.Tree(true)[0]
			require.Equal(r, 1, node.ChildCount)
			require.Equal(r, "root/GET /", node.Children[0].Path)
			require.Equal(r, otp.StatusRunning, node.Children[0].Status)
			return nil
		}))
		require.Zero(r, r.active())
		require.ErrorIs(r, context.Cause(kept), otp.ErrNormal)
		require.Empty(r, r.seen.of(otp.EventExit), "an orderly end is not worth an event")
	})

	inRunner(t, "an error is the caller's affair", func(r *runner) {
		held := make(chan struct{})
		p, result := r.start(func(context.Context) error { <-held; return errBoom })
		close(held)
		require.Equal(r, errBoom, <-result)
		require.Equal(r, otp.ErrNormal, otptest.Ended(r, p))
		require.Empty(r, r.seen.of(otp.EventExit))
	})

	inRunner(t, "a panic is a crash of the process and an error for the caller", func(r *runner) {
		held := make(chan struct{})
		p, result := r.start(func(context.Context) error { <-held; panic(errBoom) })
		close(held)
		err := <-result
		var crash *otp.PanicError
		require.ErrorAs(r, err, &crash)
		require.ErrorIs(r, err, errBoom)
		require.Contains(r, string(crash.Stack), "task_test.go")
		require.Equal(r, err, otptest.Ended(r, p))
		require.Len(r, r.seen.of(otp.EventExit), 1)
		require.Zero(r, r.active())
		require.True(r, r.root.Alive())
	})

	inRunner(t, "Goexit is a crash and goes on", func(r *runner) {
		held, gone, after := make(chan struct{}), make(chan struct{}), false
		go func() {
			defer close(gone)
			_ = r.run(func(context.Context) error { <-held; runtime.Goexit(); return nil })
			after = true
		}()
		synctest.Wait()
		infos := must(otp.WhichChildren(r.Context(), r.root))(r)
		close(held)
		<-gone
		require.False(r, after)
		require.Equal(r, otp.ErrGoexit, otptest.Ended(r, infos[0].Proc))
		require.Len(r, r.seen.of(otp.EventExit), 1)
		require.Zero(r, r.active())
	})

	inRunner(t, "the end of the caller's context is no order", func(r *runner) {
		ctx, cancel := context.WithCancelCause(r.Context())
		err := runTask(ctx, r.root, "request", func(inner context.Context) error {
			cancel(errBoom)
			<-inner.Done()
			require.Equal(r, errBoom, context.Cause(inner))
			return inner.Err()
		})
		require.Equal(r, context.Canceled, err)
	})

	inRunner(t, "needs a running dynamic supervisor", func(r *runner) {
		never := func(context.Context) error { panic("not called") }
		require.NoError(r, r.run(func(context.Context) error { return nil }))
		otptest.Crash(r, r.root, otp.ErrShutdown)
		for _, target := range []otp.Target{r.root, r.sys.Ref("root"), r.sys.Ref("nobody")} {
			var down *otp.DownError
			require.ErrorAs(r, runTask(r.Context(), target, "late", never), &down)
		}
		must(r.sys.StartRoot(r.Context(), "other", otp.SupSpec{Children: []otp.ChildSpec{{ID: "a", Task: sleeper}}}))(r)
		for _, name := range []string{"other", "other/a"} {
			require.ErrorIs(r, runTask(r.Context(), r.sys.Ref(name), "x", never), otp.ErrNotSupervisor)
		}
	})
}

// TestRunTaskEnded ends tasks from outside.
func TestRunTaskEnded(t *testing.T) {
	t.Parallel()

	inRunner(t, "Exit ends the context", func(r *runner) {
		for name, fn := range map[string]func(ctx context.Context) error{
			"its error": waits,
			"its cause": func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		} {
			reason := otp.Shutdown("enough")
			p, result := r.start(fn)
			p.Exit(reason)
			r.ended(<-result, reason)
			require.Equal(r, reason, otptest.Ended(r, p), name)
		}
	})

	inRunner(t, "another result wins", func(r *runner) {
		for _, want := range []error{nil, errBoom} {
			p, result := r.start(func(ctx context.Context) error { <-ctx.Done(); return want })
			p.Exit(otp.ErrShutdown)
			require.Equal(r, want, <-result)
			require.Equal(r, otp.ErrShutdown, otptest.Ended(r, p))

			p, result = r.start(func(ctx context.Context) error { <-ctx.Done(); return want })
			p.Kill()
			require.Equal(r, want, <-result)
			require.Equal(r, otp.ErrKilled, otptest.Ended(r, p))
		}
	})

	inRunner(t, "Kill in time", func(r *runner) {
		p, result := r.start(waits)
		var told error
		p.Watch(func(reason error) { told = reason })
		p.Kill()
		r.ended(<-result, otp.ErrKilled)
		require.Equal(r, otp.ErrKilled, told)
		require.Zero(r, r.sys.Leaked())
	})

	inRunner(t, "Kill not in time", func(r *runner) {
		for _, tc := range []struct {
			result error
			ended  bool
		}{{nil, true}, {context.Canceled, true}, {errBoom, false}} {
			held := make(chan struct{})
			p, result := r.start(func(context.Context) error { <-held; return tc.result })
			p.Kill()
			otptest.Advance(51 * time.Millisecond)
			require.Equal(r, otp.ErrKilled, p.Reason(), "dead for everybody")
			require.Zero(r, r.active())
			require.Equal(r, 1, r.sys.Tree(false)[0].Leaked, "but shown")
			require.Empty(r, result)

			close(held)
			if err := <-result; tc.ended {
				r.ended(err, otp.ErrKilled)
			} else {
				require.Equal(r, tc.result, err)
			}
			require.Zero(r, r.sys.Leaked())
			require.Zero(r, r.sys.Tree(false)[0].Leaked)
		}
		require.Len(r, r.seen.of(otp.EventAbandoned), 3)
		require.Len(r, r.seen.of(otp.EventReturned), 3)
	})

	inRunner(t, "a panic after the end by order is returned too", func(r *runner) {
		p, result := r.start(func(ctx context.Context) error { <-ctx.Done(); panic(errBoom) })
		p.Exit(otp.ErrShutdown)
		require.ErrorIs(r, <-result, errBoom)
		require.ErrorIs(r, otptest.Ended(r, p), errBoom, "a crash replaces the reason")
	})

	inRunner(t, "TerminateProc stops it", func(r *runner) {
		p, result := r.start(waits)
		require.NoError(r, otp.TerminateProc(r.Context(), r.root, p))
		r.ended(<-result, otp.ErrShutdown)
	})

	inRunner(t, "the supervisor stops all, within one shutdown time", func(r *runner) {
		held := make(chan struct{})
		_, deaf := r.start(func(context.Context) error { <-held; return nil })
		_, other := r.start(func(context.Context) error { <-held; return nil })
		begin := time.Now()
		otptest.Crash(r, r.root, otp.ErrShutdown)
		require.Equal(r, time.Second+50*time.Millisecond, time.Since(begin))
		require.Equal(r, 2, r.sys.Leaked())
		close(held)
		r.ended(<-deaf, otp.ErrKilled)
		r.ended(<-other, otp.ErrKilled)
		require.Zero(r, r.sys.Leaked())
	})

	inRunner(t, "the supervisor is killed", func(r *runner) {
		_, result := r.start(waits)
		r.root.Kill()
		r.ended(<-result, otp.ErrKilled)
		var down *otp.DownError
		require.ErrorAs(r, r.run(waits), &down)
	})
}

// TestStressRunTask runs tasks while their supervisor is killed again and again.
// onEnd is called when the task is ordered to end, once, and only while it
// runs.
func TestRunTaskTells(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(p *otp.Proc)
		want int
	}{
		"of an exit":            {func(p *otp.Proc) { p.Exit(otp.ErrShutdown) }, 1},
		"of a kill":             {func(p *otp.Proc) { p.Kill() }, 1},
		"of both, once":         {func(p *otp.Proc) { p.Exit(otp.ErrShutdown); p.Kill() }, 1},
		"of nothing, normally":  {func(*otp.Proc) {}, 0},
		"of nothing, afterward": {nil, 0},
	} {
		inRunner(t, name, func(r *runner) {
			told, release := 0, make(chan struct{})
			result := make(chan error, 1)
			go func() {
				_, err := otp.RunTask(r.Context(), r.root, text("task"), func() { told++ }, func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-release:
					}
					return nil
				})
				result <- err
			}()
			synctest.Wait()
			infos := must(otp.WhichChildren(r.Context(), r.root))(r)
			proc := infos[0].Proc
			require.Equal(r, "task", path.Base(proc.Path()))
			if c.end != nil {
				c.end(proc)
			}
			if c.want == 0 {
				close(release)
			}
			require.NoError(r, <-result)
			proc.Exit(otp.ErrShutdown)
			proc.Kill()
			synctest.Wait()
			require.Equal(r, c.want, told)
		})
	}
}

func TestStressRunTask(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	otptest.Tree(t, sys, otp.SupSpec{Intensity: 1 << 30, Period: time.Hour, Children: []otp.ChildSpec{
		{ID: "pool", Supervisor: func() otp.SupSpec { return pool(otp.SupSpec{MaxChildren: 8}) }},
	}})
	ref := sys.Ref("root/pool")
	var workers sync.WaitGroup
	for range 10 {
		workers.Go(func() {
			for range 500 {
				err := runTask(t.Context(), ref, "x", func(ctx context.Context) error { runtime.Gosched(); return ctx.Err() })
				var down *otp.DownError
				var ended *otp.EndedError
				if err != nil && !errors.As(err, &down) && !errors.As(err, &ended) && !errors.Is(err, otp.ErrMaxChildren) {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		p := must(ref.Await(t.Context()))(t)
		p.Kill()
		<-p.Done()
	}
	workers.Wait()
	p := must(ref.Await(t.Context()))(t)
	require.Equal(t, otp.Counts{Specs: 1}, must(otp.CountChildren(t.Context(), p))(t))
}
