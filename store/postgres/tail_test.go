package postgres_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest"
)

func TestTailShowsLinesAndStateOfOneMoment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, other := b.build(), b.build()
	w := b.worker()
	marks := func() map[string]store.LogMark {
		t.Helper()
		m := must(b.builds.LogMarks(t.Context(), []string{build.ID, other.ID, "none"}))(t)
		require.Len(t, m, 2)
		return m
	}
	before := marks()
	w.gets(build.ID)
	tail := must(b.builds.Tail(t.Context(), build.ID, 0, 10))(t)
	require.Equal(t, store.Assigned, tail.State)
	require.Len(t, tail.Lines, 2)
	after := marks()
	require.Equal(t, before[other.ID], after[other.ID])
	require.Equal(t, store.LogMark{Seq: tail.Lines[1].Seq, State: store.Assigned}, after[build.ID])

	require.Equal(t, tail.Lines[:1], must(b.builds.Tail(t.Context(), build.ID, 0, 1))(t).Lines)
	require.Equal(t, store.Tail{State: store.Assigned}, must(b.builds.Tail(t.Context(), build.ID, tail.Lines[1].Seq, 10))(t))
	require.Equal(t, store.NotFound, codeOf(b.builds.Tail(t.Context(), "none", 0, 10)))
}

// A build writes up to a limit; one line says so, once, and what comes later is
// dropped, while takt's own lines still come.
func TestLogOfABuildIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	w := b.worker()
	w.gets(build.ID)
	const left = 3 * (10 + store.LogLineCost)
	must(b.Pool.Exec(t.Context(), `UPDATE builds SET log_bytes = $1`, store.MaxBuildLog-left))(t)
	says := func(messages ...string) {
		t.Helper()
		beat := store.Beat{BuildID: build.ID, WorkerID: w.id}
		for _, m := range messages {
			beat.Logs = append(beat.Logs, store.LogLine{Level: store.Info, Message: m})
		}
		must(b.builds.Touch(t.Context(), beat))(t)
	}
	says("ten bytes.")
	says("this one is ten bytes longer than", "ten bytes.")
	says("no more")
	says("no more")
	lines := storetest.Logs(t, b.DB, build.ID, 0)
	var texts []string
	for _, l := range lines[2:] {
		texts = append(texts, l.Message)
	}
	require.Equal(t, []string{"ten bytes.", "this one is ten bytes longer than", store.MessageLogLimit}, texts)
	require.NoError(t, b.builds.Cancel(t.Context(), build.ID))
	lines = storetest.Logs(t, b.DB, build.ID, lines[len(lines)-1].Seq)
	require.Len(t, lines, 1, "that it was cancelled")
	require.Equal(t, []int{1, 2, 3, 4, 6, 7}, b.numbers(), "one line is missing, and its number says so")
}

// A page is bounded in bytes, and each line is in one whatever its length.
func TestPagesOfALogAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build := b.build()
	w := b.worker()
	w.gets(build.ID)
	long := strings.Repeat("x", store.LogPage/2)
	beat := store.Beat{BuildID: build.ID, WorkerID: w.id}
	for range 5 {
		beat.Logs = append(beat.Logs, store.LogLine{Level: store.Info, Message: long})
	}
	beat.Logs = append(beat.Logs, store.LogLine{Level: store.Info, Message: long + long + long})
	must(b.builds.Touch(t.Context(), beat))(t)
	var pages []int
	for after, more := int64(0), true; more; {
		page := must(b.builds.Tail(t.Context(), build.ID, after, 500))(t)
		pages, more = append(pages, len(page.Lines)), page.More
		if more {
			after = page.Lines[len(page.Lines)-1].Seq
		}
	}
	require.Equal(t, []int{4, 2, 2, 0}, pages, "two short lines are takt's")
	require.Len(t, storetest.Logs(t, b.DB, build.ID, 0), 8)
}
