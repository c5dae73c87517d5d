package backoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWaitDoublesUpToItsLimit(t *testing.T) {
	t.Parallel()
	b := Backoff{Min: time.Second, Max: 10 * time.Second}
	require.Equal(t, 500*time.Millisecond, b.wait(0, 0))
	require.Equal(t, time.Second, b.wait(1, 0))
	require.Equal(t, 2*time.Second, b.wait(2, 0))
	require.Equal(t, 5*time.Second, b.wait(9, 0))
	require.Equal(t, 7500*time.Millisecond, b.wait(9, 0.5))
	require.Equal(t, 250*time.Millisecond, Backoff{}.wait(0, 0))
	require.Equal(t, 15*time.Second, Backoff{}.wait(99, 0))
}

func TestWaitStaysWithinItsLimits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		lowest := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "min"))
		b := Backoff{Min: lowest, Max: time.Duration(rapid.Int64Range(int64(lowest), int64(1000*time.Hour)).Draw(t, "max"))}
		n := rapid.IntRange(0, 100_000).Draw(t, "n")
		got := b.Wait(n)
		require.GreaterOrEqual(t, got, b.Min/2)
		require.LessOrEqual(t, got, b.Max)
		asked := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "asked"))
		got = b.WaitAtLeast(n, asked)
		require.GreaterOrEqual(t, got, asked)
		require.LessOrEqual(t, got, max(b.Max, asked+asked/10))
	})
}

func TestPauseEndsEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, early := time.Now(), make(chan struct{}, 1)
		require.NoError(t, Pause(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(begun))
		early <- struct{}{}
		require.NoError(t, PauseUntil(t.Context(), time.Minute, early))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errStop)
		require.ErrorIs(t, Pause(ctx, time.Minute), errStop)
		require.Equal(t, time.Minute, time.Since(begun))
	})
}

var errStop = errors.New("stop")

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "1", "0.25", "-1", "1e9", "NaN", "99999999999999999999", "Wed, 21 Oct 2015 07:28:00 GMT", " 5 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		wait, ok := RetryAfter(s, time.Unix(1_000_000, 0))
		require.GreaterOrEqual(t, wait, time.Duration(0))
		require.True(t, ok || wait == 0)
	})
}
