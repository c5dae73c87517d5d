package otp_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
)

// TestStressCalls has ten goroutines call servers that crash at each 50th call.
// Every call is answered or fails because its server went down; none waits for
// its timeout.
func TestStressCalls(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	var calls atomic.Int64
	child := puppet{call: func(_ *otp.Ctx, _ otp.From, req any) (any, error) {
		if calls.Add(1)%50 == 0 {
			panic(errBoom)
		}
		return req, nil
	}}
	spec := otp.SupSpec{Strategy: otp.RestForOne, Intensity: 1 << 30, Period: time.Hour}
	for _, id := range []string{"a", "b", "c"} {
		spec.Children = append(spec.Children, otp.ChildSpec{ID: id, Server: child.make})
	}
	root := otptest.Tree(t, sys, spec)
	refs := []otp.Ref{sys.Ref("root/a"), sys.Ref("root/b"), sys.Ref("root/c")}

	var workers sync.WaitGroup
	var answered, down atomic.Int64
	for w := range 10 {
		workers.Go(func() {
			for i := range 1000 {
				got, err := otp.CallWait[int](t.Context(), refs[(w+i)%3], time.Minute, i)
				var gone *otp.DownError
				switch {
				case err == nil && got == i:
					answered.Add(1)
				case errors.As(err, &gone):
					down.Add(1)
				default:
					t.Errorf("call %d: got %d, %v", i, got, err)
				}
			}
		})
	}
	workers.Wait()
	require.EqualValues(t, 10_000, answered.Load()+down.Load())
	require.Greater(t, answered.Load(), int64(8000))
	require.Positive(t, down.Load())
	require.True(t, root.Alive())
}

// TestStressStartStop boots and stops trees from ten goroutines, fifty times
// each, in one system.
func TestStressStartStop(t *testing.T) {
	t.Parallel()
	sys := otptest.New(t)
	var workers sync.WaitGroup
	for w := range 10 {
		workers.Go(func() {
			name := "root" + string(rune('0'+w))
			for range 50 {
				root, err := sys.StartRoot(t.Context(), name, otp.SupSpec{Children: []otp.ChildSpec{
					{ID: "a", Server: puppet{}.make}, {ID: "b", Task: sleeper},
				}})
				if err != nil {
					t.Error(err)
					return
				}
				root.Exit(otp.ErrShutdown)
				<-root.Done()
			}
		})
	}
	workers.Wait()
	require.Empty(t, sys.Names())
}

// TestStressCasts has eight goroutines cast at once: none is lost, and those of each
// arrive in their order.
func TestStressCasts(t *testing.T) {
	t.Parallel()
	const each = 1000
	var next [8]int
	p := otptest.Start(t, puppet{cast: func(_ *otp.Ctx, msg any) {
		if at := msg.([2]int); next[at[0]] == at[1] { // ours
			next[at[0]]++
		}
	}, call: func(*otp.Ctx, otp.From, any) (any, error) { return next, nil }}.make)
	var posters sync.WaitGroup
	for w := range next {
		posters.Go(func() {
			for i := range each {
				otp.Cast(p, [2]int{w, i})
			}
		})
	}
	posters.Wait()
	require.Equal(t, [8]int{each, each, each, each, each, each, each, each}, must(otp.Call[[8]int](t.Context(), p, nil))(t))
}
