// Package otptest helps to test processes of package otp.
//
// # State
//
// The package keeps none. The systems that it makes end with their test.
//
// # Failure
//
// Everything that goes wrong fails the test.
//
// # Concurrency
//
// Call the functions from the test's goroutine, like those of testing.T. In a synctest
// bubble, make the system inside the bubble.
package otptest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
)

// patience is how long a test waits for events that should happen at once.
const patience = 10 * time.Second

// New makes a system that logs to the test. It is shut down at the test's end,
// which fails if a process can't be stopped.
func New(tb testing.TB, options ...func(*otp.Options)) *otp.System {
	tb.Helper()
	opts := otp.Options{Logger: zerolog.New(zerolog.NewTestWriter(tb))}
	for _, option := range options {
		option(&opts)
	}
	sys := otp.New(opts)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		require.Empty(tb, sys.Shutdown(ctx), "processes that could not be stopped")
	})
	return sys
}

// Start starts an unsupervised server in a system of its own.
func Start(tb testing.TB, mk func() otp.Server) *otp.Proc {
	tb.Helper()
	p, err := New(tb).Start(tb.Name(), mk)
	require.NoError(tb, err)
	return p
}

// Tree starts a root supervisor called "root".
func Tree(tb testing.TB, sys *otp.System, spec otp.SupSpec) *otp.Proc {
	tb.Helper()
	root, err := sys.StartRoot(tb.Context(), "root", spec)
	require.NoError(tb, err)
	return root
}

// T is a test in a synctest bubble.
type T struct{ *testing.T }

// Bubble runs a parallel subtest in a synctest bubble.
func Bubble(t *testing.T, name string, f func(t T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { f(T{t}) })
	})
}

// Ended waits until p has ended and returns its reason.
func Ended(tb testing.TB, p *otp.Proc) error {
	tb.Helper()
	select {
	case <-p.Done():
		return p.Reason()
	case <-time.After(patience):
		require.Fail(tb, "process does not end", p.Path())
		return nil
	}
}

// Restarted waits until a new incarnation runs under old's name, and returns it.
func Restarted(tb testing.TB, sys *otp.System, old *otp.Proc) *otp.Proc {
	tb.Helper()
	_ = Ended(tb, old)
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	p, err := sys.Ref(old.Name()).Await(ctx)
	require.NoError(tb, err)
	return p
}

// Crash makes p end with reason, as if by itself, and waits until it has.
func Crash(tb testing.TB, p *otp.Proc, reason error) {
	tb.Helper()
	p.Exit(reason)
	_ = Ended(tb, p)
}

// Eventually waits until cond holds.
func Eventually(tb testing.TB, cond func() bool, what string) {
	tb.Helper()
	require.Eventually(tb, cond, patience, time.Millisecond, what)
}

// Advance lets d pass in a synctest bubble, and waits until all goroutines are blocked.
func Advance(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's clock, not the wall's
	synctest.Wait()
}
