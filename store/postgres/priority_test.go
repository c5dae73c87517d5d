package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestPriorityMovesABuildThatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	builds := b.builds
	w := b.worker(slots(10))
	first, second, third := b.build(), b.build(), b.build()
	require.Equal(t, first.ID, jobID(w.poll())) // the low-water mark is past it

	ref, err := builds.SetPriority(t.Context(), third.ID, 10)
	require.NoError(t, err)
	require.Equal(t, store.BuildRef{ID: third.ID, Platform: store.IOS, Position: ref.Position}, ref)
	require.Equal(t, third.ID, jobID(w.poll()), "it overtakes what is below the mark")
	require.Equal(t, second.ID, jobID(w.poll()))
	require.Equal(t, 10, b.find(third.ID).Priority)

	lower, same := b.build(), b.build()
	_, err = builds.SetPriority(t.Context(), lower.ID, -1)
	require.NoError(t, err)
	require.Equal(t, same.ID, jobID(w.poll()))
	require.Equal(t, lower.ID, jobID(w.poll()))
	lines, err := builds.Logs(t.Context(), lower.ID, 0, 2)
	require.NoError(t, err)
	require.Equal(t, "Priority changed from 0 to -1", lines[1].Message)

	_, err = builds.SetPriority(t.Context(), lower.ID, 1)
	require.Equal(t, store.Conflict, store.CodeOf(err))
	_, err = builds.SetPriority(t.Context(), store.NewID(), 1)
	require.Equal(t, store.NotFound, store.CodeOf(err))
	waits := b.build()
	_, err = builds.SetPriority(t.Context(), waits.ID, 11)
	require.Equal(t, store.InvalidArgument, store.CodeOf(err))
}
