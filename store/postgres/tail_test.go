package postgres_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func TestTailShowsLinesAndStateOfOneMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, other := b.build(), b.build()
	w := b.worker()
	marks := func() map[string]store.LogMark {
		t.Helper()
		m, err := b.builds.LogMarks(t.Context(), []string{build.ID, other.ID, "none"})
		require.NoError(t, err)
		require.Len(t, m, 2)
		return m
	}
	before := marks()
	w.gets(build.ID)
	tail, err := b.builds.Tail(t.Context(), build.ID, 0, 10)
	require.NoError(t, err)
	require.Equal(t, store.Assigned, tail.State)
	require.Len(t, tail.Lines, 2)
	after := marks()
	require.Equal(t, before[other.ID], after[other.ID])
	require.Equal(t, store.LogMark{Seq: tail.Lines[1].Seq, State: store.Assigned}, after[build.ID])

	page, err := b.builds.Tail(t.Context(), build.ID, 0, 1)
	require.NoError(t, err)
	require.Equal(t, tail.Lines[:1], page.Lines)
	none, err := b.builds.Tail(t.Context(), build.ID, tail.Lines[1].Seq, 10)
	require.NoError(t, err)
	require.Equal(t, store.Tail{State: store.Assigned}, none)
	_, err = b.builds.Tail(t.Context(), "none", 0, 10)
	require.Equal(t, store.NotFound, store.CodeOf(err))
}
