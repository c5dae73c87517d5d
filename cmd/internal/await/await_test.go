package await_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/await"
	"takt/store/storetest/faketime"
)

// after is a condition that holds when d has passed.
func after(d time.Duration) func(context.Context) (bool, error) {
	began := time.Now()
	return func(context.Context) (bool, error) { return time.Since(began) >= d, nil }
}

// every is progress that moves each time that d has passed, until end has.
func every(d, end time.Duration) func() string {
	began := time.Now()
	return func() string { return fmt.Sprint("step ", int(min(time.Since(began), end)/d)) }
}

const never = 1000 * time.Hour

func TestWaitEndsWhenItsConditionHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, await.Until(t.Context(), "it", nil, after(0)))
		require.Zero(t, time.Since(began))
		require.NoError(t, await.Until(t.Context(), "it", nil, after(59*time.Second)))
		require.Equal(t, 59*time.Second, time.Since(began))
	})
}

func TestWaitGoesOnWhileSomethingMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, await.Until(t.Context(), "it", every(50*time.Second, never), after(time.Hour)))
	})
}

func TestWaitEndsWhenNothingMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := await.Until(t.Context(), "ten builds", every(50*time.Second, 500*time.Second), after(never))
		require.EqualError(t, err, "waited for ten builds, and nothing moved for 1m0s; last seen: step 10")
		require.InDelta(t, 560, time.Since(began).Seconds(), 1)
		began = time.Now()
		require.EqualError(t, await.Until(t.Context(), "it", nil, after(never)), "waited for it, and nothing moved for 1m0s")
		require.InDelta(t, 60, time.Since(began).Seconds(), 1)
	})
}

// A machine that stood still, or a question that took long, is not held against the work.
func TestWaitCountsItsOwnLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), 0
		slow := func(ctx context.Context) (bool, error) {
			faketime.Pass(2 * await.Patience)
			asked++
			return asked == 30, nil
		}
		require.NoError(t, await.Until(t.Context(), "it", nil, slow))
		require.Equal(t, 60*await.Patience, time.Since(began))
	})
}

func TestWaitEndsWithItsConditionOrItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		require.Equal(t, broken, await.Until(t.Context(), "it", nil, func(context.Context) (bool, error) { return false, broken }))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, broken)
		defer cancel()
		began := time.Now()
		err := await.Until(ctx, "it", every(time.Second, never), after(never))
		require.ErrorIs(t, err, broken)
		require.EqualError(t, err, "waiting for it: broken; last seen: step 3600")
		require.Equal(t, time.Hour, time.Since(began))
	})
}
