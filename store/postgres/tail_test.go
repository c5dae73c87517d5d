package postgres_test

import (
	"strings"
	"testing"
	"time"

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
	require.Equal(t, tail.Lines[1:], must(b.builds.Tail(t.Context(), build.ID, -1, 10))(t).Lines)
	require.Equal(t, tail.Lines, must(b.builds.Tail(t.Context(), build.ID, -3, 10))(t).Lines)
	require.Equal(t, store.Tail{State: store.Assigned}, must(b.builds.Tail(t.Context(), build.ID, tail.Lines[1].Seq, 10))(t))
	require.Equal(t, store.NotFound, codeOf(b.builds.Tail(t.Context(), "none", 0, 10)))
}

// chatty is a build with a log that is nearly as long as is stored as it comes: left bytes
// more and it is.
func chatty(t *testing.T, b *fixture, left int) (build store.Build, w *client, says func(messages ...string)) {
	t.Helper()
	build, w = b.build(), b.worker()
	w.gets(build.ID)
	b.exec(`UPDATE builds SET log_bytes = $1 WHERE id = $2`, store.MaxLogHead-left, build.ID)
	return build, w, func(messages ...string) {
		t.Helper()
		heartbeat := w.heartbeat(build.ID)
		for _, m := range messages {
			heartbeat.Logs = append(heartbeat.Logs, store.LogLine{Level: store.Info, Message: m})
		}
		require.NoError(t, b.touch(t.Context(), heartbeat))
	}
}

// half is a line that costs half a MiB.
func half(name string) string { return name + strings.Repeat(".", 512<<10-store.LogLineCost-len(name)) }

// heads returns the first words of a build's log after its first two lines, and the numbers
// of these lines.
func (b *fixture) heads(id string) (heads []string, numbers []int) {
	b.t.Helper()
	for _, l := range storetest.Logs(b.t, b.DB, id, 0)[2:] {
		heads = append(heads, strings.TrimRight(l.Message, "."))
		numbers = append(numbers, l.Number)
	}
	return heads, numbers
}

// A long log keeps its beginning and its end, the part with the error. What was shown keeps
// its place and its number, and lines say what is missing.
func TestLogOfABuildIsBoundedAndKeepsItsEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	build, w, says := chatty(t, b, 3*(10+store.LogLineCost))
	limit := strings.TrimRight(store.MessageLogLimit, ".")
	says("ten bytes.")
	says("this one is ten bytes longer", "than fits..")
	shown, _ := b.heads(build.ID)
	require.Equal(t, []string{"ten bytes", limit}, shown)
	for range 32 {
		says(half("left out"), half("in part"))
	}
	says("the error")
	heads, numbers := b.heads(build.ID)
	require.Equal(t, shown, heads, "while it runs")
	require.Equal(t, []int{3, 4}, numbers)
	require.Equal(t, 16, b.count(`SELECT count(*) FROM build_log_tails`), "15.5 MiB and a line")
	must(b.builds.Finish(t.Context(), failure(build.ID, w.id)))(t)
	says("too late")
	heads, numbers = b.heads(build.ID)
	require.Equal(t, shown, heads[:2])
	require.Equal(t, "… 36 lines left out: the log reached its limit of 64 MiB …", heads[2])
	require.Equal(t, []string{"the error", "Build failed: exit status 1"}, heads[33:])
	require.Equal(t, []int{3, 4, 40, 41}, numbers[:4])
	require.Equal(t, []int{71, 72}, numbers[33:], "all that the worker wrote is counted")
	require.Zero(t, b.count(`SELECT count(*) FROM build_log_tails`))
	require.LessOrEqual(t, b.count(`SELECT sum(octet_length(message) + $1) FROM build_logs WHERE by_worker`, store.LogLineCost), store.MaxLogTail+100)
}

// Whatever ends an attempt, a controller of the release before included, appends the end of
// its log.
func TestTheEndOfALogComesWhenTheAttemptEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, end := range map[string]func(build, worker string) error{
		"completed": func(build, worker string) error {
			_, err := b.builds.Finish(t.Context(), success(build, worker))
			return err
		},
		"cancelled": func(build, _ string) error { return b.builds.Cancel(t.Context(), build, "", "") },
		"given back": func(build, worker string) error {
			_, err := b.builds.GiveBack(t.Context(), fault(build, worker, store.FaultDisk))
			return err
		},
		"requeued":     func(build, _ string) error { _, err := b.builds.Requeue(t.Context(), build); return err },
		"unregistered": func(_, worker string) error { _, err := b.workers.UnregisterID(t.Context(), worker, ""); return err },
		"silent": func(build, _ string) error {
			b.exec(`UPDATE builds SET last_seen_at = now() - interval '1 h' WHERE id = $1`, build)
			_, err := b.queue.Sweep(t.Context(), store.Sweep{Timeouts: store.Timeouts{BuildTimeout: time.Minute, WorkerTimeout: time.Hour}, Rule: store.LostRule{MaxAttempts: 3}, Patience: time.Hour})
			return err
		},
	} {
		build, w, says := chatty(t, b, 0)
		says("the end")
		heads, _ := b.heads(build.ID)
		require.NotContains(t, heads, "the end", name)
		require.NoError(t, end(build.ID, w.id), name)
		heads, numbers := b.heads(build.ID)
		require.Equal(t, "the end", heads[1], "%s: nothing was left out", name)
		require.Equal(t, []int{3, 4, 5}, numbers, name)
		_ = b.builds.Cancel(t.Context(), build.ID, "", "") // so that the next worker does not get it
	}
	build, _, says := chatty(t, b, 0)
	says("the end")
	b.exec(`UPDATE builds SET state = 'failed', completed_at = now() WHERE id = $1`, build.ID)
	heads, _ := b.heads(build.ID)
	require.Equal(t, "the end", heads[1], "release 0.1.0 ended it")
	b.except = append(b.except, "worker_held")
}

// A page is bounded in bytes, and each line is in one whatever its length.
func TestPagesOfALogAreBounded(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	long := strings.Repeat("x", store.LogPage/2)
	heartbeat := store.Heartbeat{BuildID: build.ID, WorkerID: w.id}
	for range 5 {
		heartbeat.Logs = append(heartbeat.Logs, store.LogLine{Level: store.Info, Message: long})
	}
	heartbeat.Logs = append(heartbeat.Logs, store.LogLine{Level: store.Info, Message: long + long + long})
	must(b.builds.RecordHeartbeat(t.Context(), heartbeat))(t)
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
