package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestAnOperatorTakesABuildFromItsWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stuck, other := b.worker(slots(1)), b.worker(slots(1))
	first, second := b.build(), b.build()
	require.Equal(t, first.ID, jobID(stuck.poll()))
	require.NoError(t, b.touch(t.Context(), store.Heartbeat{BuildID: first.ID, WorkerID: stuck.id, Attempt: 1}))

	ref := must(b.builds.Requeue(t.Context(), first.ID))(t)
	require.False(t, ref.StartedAt.IsZero())
	require.Equal(t, []any{first.ID, stuck.id, 1}, []any{ref.ID, ref.WorkerID, ref.Attempt})
	require.Contains(t, b.logs(first.ID), "Worker "+stuck.id+" lost attempt 1 because an operator requeued it, build is pending again")
	require.Equal(t, store.Pending, b.find(first.ID).State)
	b.checkInvariants()

	require.Equal(t, first.ID, jobID(other.poll()), "it is at its old position")
	require.Equal(t, second.ID, jobID(stuck.poll()), "the worker has its slot back")
	err := b.touch(t.Context(), store.Heartbeat{BuildID: first.ID, WorkerID: stuck.id, Attempt: 1})
	require.Equal(t, store.StaleAttempt, store.CodeOf(err))

	waits := b.build()
	require.Equal(t, store.Conflict, codeOf(b.builds.Requeue(t.Context(), waits.ID)))
	require.Equal(t, store.NotFound, codeOf(b.builds.Requeue(t.Context(), store.NewID())))
}
