// Package otptest helps to test processes of package otp.
//
// # State
//
// None beyond the systems it makes, which end with their test.
//
// # Failure
//
// Everything that goes wrong fails the test.
//
// # Concurrency
//
// Like testing.T: call it from the test's goroutine. Inside a synctest bubble
// make the system in the bubble.
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

// patience is how long a test waits for what should come at once.
const patience = 10 * time.Second

// New makes a system that logs to the test. It is shut down at the test's end,
// which fails if a process can't be stopped.
func New(t testing.TB, options ...func(*otp.Options)) *otp.System {
	t.Helper()
	opts := otp.Options{Logger: zerolog.New(zerolog.NewTestWriter(t))}
	for _, option := range options {
		option(&opts)
	}
	sys := otp.New(opts)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		report := sys.Shutdown(ctx)
		require.True(t, report.Clean(), "processes that could not be stopped: %+v", report)
	})
	return sys
}

// Start starts an unsupervised server in a system of its own.
func Start(t testing.TB, mk func() otp.Server) *otp.Proc {
	t.Helper()
	p, err := New(t).Start(t.Name(), mk)
	require.NoError(t, err)
	return p
}

// Tree starts a root supervisor called "root".
func Tree(t testing.TB, sys *otp.System, spec otp.SupSpec) *otp.Proc {
	t.Helper()
	root, err := sys.StartRoot(t.Context(), "root", spec)
	require.NoError(t, err)
	return root
}

// Ended waits until p has ended and returns its reason.
func Ended(t testing.TB, p *otp.Proc) error {
	t.Helper()
	select {
	case <-p.Done():
		return p.Reason()
	case <-time.After(patience):
		require.Fail(t, "process does not end", p.Path())
		return nil
	}
}

// Restarted waits until another incarnation than old runs under its name, and
// returns it.
func Restarted(t testing.TB, sys *otp.System, old *otp.Proc) *otp.Proc {
	t.Helper()
	Ended(t, old)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := sys.Ref(old.Name()).Await(ctx)
	require.NoError(t, err)
	return p
}

// Crash makes p end with reason, as if by itself, and waits until it has.
func Crash(t testing.TB, p *otp.Proc, reason error) {
	t.Helper()
	p.Exit(reason)
	Ended(t, p)
}

// Eventually waits until cond holds.
func Eventually(t testing.TB, cond func() bool, what string) {
	t.Helper()
	require.Eventually(t, cond, patience, time.Millisecond, what)
}

// Advance lets d pass in a synctest bubble, and everything that follows from it.
func Advance(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the bubble's clock, not the wall's
	synctest.Wait()
}
