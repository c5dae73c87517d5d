package actors_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors"
	"takt/actors/queue"
	"takt/store"
	"takt/store/storetest"
)

func TestOperatorsOrders(t *testing.T) {
	t.Parallel()
	n := startNode(t, storetest.New(t).Config, queue.Config{})
	ctx := t.Context()
	require.NoError(t, n.Restart(ctx, "takt/database/pool"))
	require.NoError(t, n.Restart(ctx, "takt/orchestration"))
	require.NoError(t, n.Terminate(ctx, "takt/pubsub"))
	require.NoError(t, n.Terminate(ctx, "takt/pubsub"), "as in OTP")
	require.Equal(t, store.Conflict, store.CodeOf(n.Restart(ctx, "takt/pubsub")), "terminated")
	require.NoError(t, n.StartChild(ctx, "takt/pubsub"))

	const dynamic, nobody, orphan = "takt/request_sup/fleet/request", "takt/nobody", "takt/nobody/below"
	for name, order := range map[string]func(context.Context, string) error{
		"restart": n.Restart, "terminate": n.Terminate, "start": n.StartChild,
	} {
		require.Equal(t, store.NotFound, store.CodeOf(order(ctx, nobody)), name)
		require.Equal(t, store.Conflict, store.CodeOf(order(ctx, orphan)), name)
		require.Equal(t, store.Conflict, store.CodeOf(order(ctx, dynamic)), name)
	}
	require.Equal(t, store.Conflict, store.CodeOf(n.StartChild(ctx, "takt/pubsub")), "running")
	require.Equal(t, store.Conflict, store.CodeOf(n.StartChild(ctx, "takt")), "running")

	ended, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("nobody waits"))
	// repo has to reach its database again, so no answer overtakes the end of the wait.
	require.Equal(t, store.Timeout, store.CodeOf(n.Restart(ended, "takt/database")))
	require.Zero(t, n.Snapshot(false).Restarts)
}

func TestRestartOfTheRootIsAnotherStart(t *testing.T) {
	t.Parallel()
	n := startNode(t, storetest.New(t).Config, queue.Config{})
	begun := n.Snapshot(false).StartedAt
	restarted := make(chan error, 1)
	go func() { restarted <- n.Restart(t.Context(), "takt") }()
	<-n.Done()
	require.ErrorIs(t, n.Reason(), actors.ErrRestart)
	require.NoError(t, n.Start(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil }))
	require.NoError(t, <-restarted)
	require.True(t, n.Snapshot(false).StartedAt.After(begun))
	require.Eventually(t, n.Ready, time.Minute, 10*time.Millisecond)

	require.NoError(t, n.Terminate(t.Context(), "takt"))
	require.NoError(t, n.Terminate(t.Context(), "takt"), "twice is once")
	<-n.Terminated()
	require.Empty(t, n.Stop(t.Context()))
	require.Equal(t, store.Conflict, store.CodeOf(n.Restart(t.Context(), "takt")))
}
