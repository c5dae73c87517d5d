package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/client"
	"takt/store"
)

func temporary(wait time.Duration) error {
	return &client.Error{Op: "op", Status: 503, Err: &store.Error{Code: store.Unavailable, RetryAfter: wait}}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	t.Run("repeats what is temporary and honours Retry-After", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began, calls := time.Now(), 0
			require.NoError(t, client.Retry{}.Do(t.Context(), func(context.Context) error {
				calls++
				if calls == 3 {
					return nil
				}
				return temporary(5 * time.Second)
			}))
			require.GreaterOrEqual(t, time.Since(began), 10*time.Second)
			require.Less(t, time.Since(began), 11*time.Second)
		})
	})
	t.Run("returns what is final at once", func(t *testing.T) {
		t.Parallel()
		calls := 0
		final := errors.New("no")
		err := client.Retry{}.Do(t.Context(), func(context.Context) error { calls++; return final })
		require.ErrorIs(t, err, final)
		require.Equal(t, 1, calls)
	})
	t.Run("stops after its attempts", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			calls, waits := 0, 0
			r := client.Retry{Attempts: 4, OnWait: func(error, time.Duration) { waits++ }}
			err := r.Do(t.Context(), func(context.Context) error { calls++; return temporary(0) })
			require.Equal(t, store.Unavailable, store.CodeOf(err))
			require.Equal(t, 4, calls)
			require.Equal(t, 3, waits)
		})
	})
	t.Run("stops when its patience is over", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			err := client.Retry{Patience: time.Hour}.Do(t.Context(), func(context.Context) error { return temporary(0) })
			require.Error(t, err)
			require.LessOrEqual(t, time.Since(began), time.Hour)
			require.Greater(t, time.Since(began), 59*time.Minute)
		})
	})
	t.Run("a wait ends with its context, which gives the error", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cause := errors.New("draining")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			err := client.Retry{}.Do(ctx, func(context.Context) error { return temporary(time.Minute) })
			require.ErrorIs(t, err, cause)
			require.Zero(t, client.StatusOf(err))
		})
	})
}
