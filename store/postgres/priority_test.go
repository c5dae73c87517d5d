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

	ref := must(builds.SetPriority(t.Context(), third.ID, 10))(t)
	require.Equal(t, store.BuildRef{ID: third.ID, Platform: store.IOS, ClassID: store.IOSClass, Position: ref.Position, Sender: ref.Sender}, ref)
	require.NotZero(t, ref.Sender)
	require.Equal(t, third.ID, jobID(w.poll()), "it overtakes what is below the mark")
	require.Equal(t, second.ID, jobID(w.poll()))
	require.Equal(t, 10, b.find(third.ID).Priority)

	lower, same := b.build(), b.build()
	must(builds.SetPriority(t.Context(), lower.ID, -1))(t)
	require.Equal(t, same.ID, jobID(w.poll()))
	require.Equal(t, lower.ID, jobID(w.poll()))
	require.Equal(t, "Priority changed from 0 to -1", b.logs(lower.ID)[1])

	require.Equal(t, store.Conflict, codeOf(builds.SetPriority(t.Context(), lower.ID, 1)))
	require.Equal(t, store.NotFound, codeOf(builds.SetPriority(t.Context(), store.NewID(), 1)))
	waits := b.build()
	require.Equal(t, store.InvalidArgument, codeOf(builds.SetPriority(t.Context(), waits.ID, 11)))
}
