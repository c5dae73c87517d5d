package request_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
	"takt/actors/request"
	"takt/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool is where requests run.
const pool = "fleet"

func setup(tb testing.TB) (*otp.System, request.Requests) {
	tb.Helper()
	sys := otp.New(otp.Options{Logger: zerolog.Nop()})
	_, err := sys.StartRoot(tb.Context(), "takt", otp.SupSpec{Intensity: 100, Children: []otp.ChildSpec{{
		ID: "request_sup", Supervisor: func() otp.SupSpec { return otp.SupSpec{Intensity: 100, Children: request.Specs(pool, "other")} },
	}}})
	require.NoError(tb, err)
	return sys, request.New(sys, pool, "other")
}

// bubble is a running request_sup in fake time.
type bubble struct {
	*testing.T
	sys      *otp.System
	requests request.Requests
}

func inBubble(t *testing.T, name string, f func(b *bubble)) {
	t.Helper()
	otptest.Bubble(t, name, func(t otptest.T) {
		sys, requests := setup(t)
		defer sys.Shutdown(context.Background())
		f(&bubble{t.T, sys, requests})
	})
}

func TestRun(t *testing.T) {
	t.Parallel()

	inBubble(t, "a panic costs its own request only", func(b *bubble) {
		sup := b.sys.Whereis("takt/request_sup/fleet")
		var wg sync.WaitGroup
		gate := make(chan struct{})
		for range 10 {
			wg.Go(func() {
				err := b.requests.Run(b.Context(), pool, &store.Work{Route: "waits"}, func(context.Context) error { <-gate; return nil })
				require.NoError(b, err)
			})
		}
		for range 50 {
			err := b.requests.Run(b.Context(), pool, &store.Work{Route: "panics"}, func(context.Context) error { panic("a defect") })
			var crash *otp.PanicError
			require.ErrorAs(b, err, &crash)
			require.Equal(b, "a defect", crash.Value)
			require.Contains(b, string(crash.Stack), "request_test")
		}
		close(gate)
		wg.Wait()
		require.Same(b, sup, b.sys.Whereis("takt/request_sup/fleet"))
	})

	inBubble(t, "an error of the function that looks like a missing supervisor is not tried again", func(b *bubble) {
		runs, down := 0, &otp.DownError{Name: "takt/request_sup/fleet", Reason: otp.ErrNoProc}
		require.Equal(b, down, b.requests.Run(b.Context(), pool, &store.Work{Route: "r"}, func(context.Context) error { runs++; return down }))
		require.Equal(b, 1, runs)
	})

	inBubble(t, "it runs in the caller's goroutine and is shown in its pool", func(b *bubble) {
		require.NoError(b, b.requests.Run(b.Context(), pool, &store.Work{Route: "GET /r", ID: "7"}, func(context.Context) error {
			stack := make([]byte, 16<<10)
			stack = stack[:runtime.Stack(stack, false)]
			require.Contains(b, string(stack), "TestRun", "the caller's frames are below")
			children, err := otp.WhichChildren(context.Background(), b.sys.Ref("takt/request_sup/fleet"))
			require.NoError(b, err)
			require.Len(b, children, 1)
			require.Equal(b, "takt/request_sup/fleet/GET /r 7", children[0].Proc.Path())
			pools := b.sys.Tree(true)[0].Children[0].Children
			require.Equal(b, []string{"fleet", "GET /r 7"}, []string{pools[0].ID, pools[0].Children[0].ID})
			require.Equal(b, time.Now(), pools[0].Children[0].StartedAt)
			return nil
		}))
	})

	inBubble(t, "a stop of the supervisor ends running requests, and new ones are refused", func(b *bubble) {
		result := make(chan error, 1)
		go func() {
			result <- b.requests.Run(b.Context(), pool, &store.Work{Route: "r"}, func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		b.sys.Shutdown(context.Background())
		ended := <-result
		require.ErrorIs(b, ended, otp.ErrShutdown)
		require.Equal(b, store.Unavailable, store.CodeOf(ended), "the request may be made again")

		before := time.Now()
		err := b.requests.Run(b.Context(), pool, &store.Work{Route: "r"}, func(context.Context) error { panic("not reached") })
		require.Equal(b, store.Unavailable, store.CodeOf(err))
		require.Equal(b, request.RestartGap, time.Since(before))
	})

	inBubble(t, "a restart of the supervisor is bridged", func(b *bubble) {
		require.NoError(b, otp.TerminateChild(b.Context(), b.sys.Ref("takt"), "request_sup"))
		time.AfterFunc(request.RestartGap/2, func() {
			_, err := otp.RestartChild(context.Background(), b.sys.Ref("takt"), "request_sup")
			require.NoError(b, err)
		})
		require.NoError(b, b.requests.Run(b.Context(), pool, &store.Work{Route: "r"}, func(context.Context) error { return nil }))
	})

	inBubble(t, "a request that comes while the supervisor stops waits for the next one", func(b *bubble) {
		var told atomic.Int32
		result := make(chan error, 1)
		go func() {
			w := &store.Work{Route: "lingers", OnStop: func() { told.Add(1) }}
			result <- b.requests.Run(b.Context(), pool, w, func(ctx context.Context) error {
				<-ctx.Done()
				<-time.After(request.RestartGap / 2)
				return ctx.Err()
			})
		}()
		synctest.Wait()
		stopping := b.sys.Whereis("takt/request_sup/fleet")
		stopping.Exit(errors.New("crashed on purpose"))
		synctest.Wait()
		require.True(b, stopping.Alive())
		require.EqualValues(b, 1, told.Load())

		before := time.Now()
		require.NoError(b, b.requests.Run(b.Context(), pool, &store.Work{Route: "r"}, func(context.Context) error { return nil }))
		require.Equal(b, request.RestartGap/2, time.Since(before))
		require.Equal(b, store.Unavailable, store.CodeOf(<-result))
	})
}
