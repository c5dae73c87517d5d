package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

func submission(t *testing.T) store.Submission {
	t.Helper()
	id := store.NewID()
	return store.Submission{
		ID: id, Platform: store.Android, Priority: 2, TokenHash: store.HashToken(store.NewBuildToken()),
		Source: storetest.File("builds/"+id+"/source.zip", id),
	}
}

func TestSubmitKeepsEverything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := submission(t)
	certs := storetest.File("builds/"+s.ID+"/certs.zip", "secret")
	s.Certs = &certs
	placed := false
	got := must(b.builds.Submit(t.Context(), s, staged(func() error { placed = true; return nil })))(t)
	require.True(t, placed)
	found := b.find(s.ID)
	require.Positive(t, found.Seq)
	found.Seq = 0
	require.NotZero(t, got.Sender)
	found.Sender = got.Sender
	require.Equal(t, got, found)
	require.Equal(t, store.Pending, got.State)
	require.Equal(t, 2, got.Priority)
	require.Equal(t, &certs, got.Certs)
	require.True(t, got.TokenHash.Equal(s.TokenHash))
	require.Equal(t, []string{"Build submitted"}, b.logs(s.ID))
	require.True(t, b.worker().gets(s.ID).Jobs.First().HasCerts)

	require.Equal(t, store.Conflict, codeOf(b.builds.Submit(t.Context(), s)))
	require.Equal(t, store.NotFound, codeOf(b.builds.Find(t.Context(), "none")))
	require.Equal(t, store.NotFound, codeOf(b.builds.Tail(t.Context(), "none", 0, 1)))
}

func TestSubmitTellsOtherControllersAtTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn := must(pgx.ConnectConfig(t.Context(), b.Config))(t)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	must(conn.Exec(t.Context(), `LISTEN takt`))(t)
	next := func() string {
		n := must(conn.WaitForNotification(t.Context()))(t)
		require.Equal(t, "takt", n.Channel)
		if strings.HasPrefix(n.Payload, "queue:position ") {
			n = must(conn.WaitForNotification(t.Context()))(t)
		}
		return n.Payload
	}
	_, err := b.builds.Submit(t.Context(), submission(t), staged(func() error { return errors.New("no") }))
	require.Error(t, err)
	must(b.builds.Submit(t.Context(), submission(t)))(t)
	require.Equal(t, "job:available android", next(), "and nothing of the one that failed")
	b.build()
	require.Equal(t, "job:available ios", next())

	w := b.worker(slots(2))
	w.poll()
	w.poll()
	must(b.workers.UnregisterID(t.Context(), w.id, ""))(t)
	require.Equal(t, fmt.Sprint("worker:changed ", w.number), next())
	require.Equal(t, "job:available", next(), "once for both platforms")
	require.NoError(t, b.queue.SaveTimeouts(t.Context(), store.Timeouts{}))
	require.Equal(t, "settings:changed heartbeat", next())
	require.NoError(t, postgres.NewNotices(b.DB).Create(t.Context(), store.Subscription{ID: "s", URL: "https://x", NoticeFilter: store.NoticeFilter{Labels: map[string]string{}}, Secrets: []byte("s")}))
	require.Equal(t, "settings:changed notices", next())
}

// C17: refused when more than the limit are pending, so limit + 1 fit; exactly so
// however many submit at once.
func TestQueueLimitIsExact(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const limit, submitters = 150, 12
	builds := postgres.NewBuilds(b.DB, postgres.BuildsConfig{QueueLimit: limit})
	var accepted, kept atomic.Int64
	fill := func() {
		var wg sync.WaitGroup
		for range submitters {
			wg.Go(func() {
				for range 30 {
					f := &settled{}
					_, err := builds.Submit(t.Context(), submission(t), f)
					if !f.aborted {
						kept.Add(1)
					}
					switch store.CodeOf(err) {
					case "":
						accepted.Add(1)
					case store.QueueFull:
					default:
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	fill()
	require.EqualValues(t, limit+1, accepted.Load())
	require.EqualValues(t, limit+1, kept.Load(), "a refused submission leaves no file")
	require.Equal(t, store.Counts{Pending: limit + 1}, must(builds.Counts(t.Context()))(t))
	require.Equal(t, limit+1, b.count(`SELECT count(*) FROM build_files`), "and leaves nothing behind")

	w := b.worker(slots(100))
	var held []string
	for range 100 {
		held = append(held, w.poll().Jobs.First().BuildID)
	}
	fill()
	require.EqualValues(t, limit+1+len(held), accepted.Load(), "what was claimed makes room")

	back := must(b.workers.UnregisterID(t.Context(), w.id, ""))(t)
	var requeued []string
	for _, b := range back.Requeued {
		requeued = append(requeued, b.ID)
	}
	require.Equal(t, held, requeued, "builds come back although the queue is full, in their order")
	_, err := builds.Submit(t.Context(), submission(t))
	require.Equal(t, store.QueueFull, store.CodeOf(err))
	require.ErrorContains(t, err, "Build queue full, try again later")
}

// Two retries of one build at once: the second waits for the first, and is refused.
func TestRetriesOfOneBuildWaitForEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.build()
	b.worker().gets(old.ID)
	retry := func(id string) error {
		source := storetest.File("builds/"+id+"/source.zip", "source")
		_, err := b.builds.Submit(t.Context(), store.Submission{ID: id, Platform: store.IOS, Source: source, RetryOf: old.ID})
		return err
	}
	release := b.locks(`SELECT FROM builds WHERE id = $1 FOR UPDATE`, old.ID) // the first stops at its log line
	ended := make(chan error, 2)
	for _, id := range []string{"first", "second"} {
		go func() { ended <- retry(id) }()
	}
	b.waits(2)
	release()
	var codes []store.Code
	for range 2 {
		codes = append(codes, store.CodeOf(<-ended))
	}
	require.ElementsMatch(t, []store.Code{"", store.RetryWaiting}, codes)
}

func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two, three := b.build(), b.build(on(store.Android)), b.build()
	w := b.worker(slots(2))
	w.gets(one.ID)
	w.gets(two.ID)
	w.finishes(one.ID)
	for name, c := range map[string]struct {
		filter store.BuildFilter
		page   store.Page
		want   []string
	}{
		"everything, newest first": {want: []string{three.ID, two.ID, one.ID}},
		"a limit":                  {page: store.Page{Limit: 2}, want: []string{three.ID, two.ID}},
		"the next page":            {page: store.Page{Limit: 2, After: store.NewCursor("builds", b.find(two.ID).Seq)}, want: []string{one.ID}},
		"a platform":               {filter: store.BuildFilter{Platform: store.IOS}, want: []string{three.ID, one.ID}},
		"a worker":                 {filter: store.BuildFilter{WorkerID: w.id}, want: []string{two.ID, one.ID}},
		"pending":                  {filter: store.BuildFilter{States: []store.BuildState{store.Pending}}, want: []string{three.ID}},
		"held":                     {filter: store.BuildFilter{States: []store.BuildState{store.Assigned, store.Building}}, want: []string{two.ID}},
		"several states":           {filter: store.BuildFilter{States: []store.BuildState{store.Completed, store.Pending}}, want: []string{three.ID, one.ID}},
		"none":                     {filter: store.BuildFilter{States: []store.BuildState{store.Failed}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := listed(b.builds.List(t.Context(), c.filter, c.page))(t)
			var ids []string
			for _, build := range got {
				ids = append(ids, build.ID)
				require.Equal(t, b.find(build.ID), build)
			}
			require.Equal(t, c.want, ids)
		})
	}
	require.Equal(t, []store.ClassCount{{Class: iosClass, N: 1}}, must(b.queue.Recount(t.Context(), 10, nil, nil))(t).Pending)
}

// While two statements add builds, others collect for the next; a build that the
// database refuses fails alone.
func TestSubmitsShareStatements(t *testing.T) {
	t.Parallel()
	b := setup(t)
	taken := submission(t)
	must(b.builds.Submit(t.Context(), taken))(t)
	const n = 64
	var wg sync.WaitGroup
	ids, errs := make([]string, n), make([]error, n)
	for i := range n {
		s := submission(t)
		if i%16 == 7 {
			s.ID = taken.ID
		}
		ids[i] = s.ID
		wg.Go(func() { _, errs[i] = b.builds.Submit(t.Context(), s) })
	}
	wg.Wait()
	for i, id := range ids {
		if id == taken.ID {
			require.Equal(t, store.Conflict, store.CodeOf(errs[i]))
			continue
		}
		require.NoError(t, errs[i])
		require.Equal(t, []string{"Build submitted"}, b.logs(id))
		require.Equal(t, id, b.find(id).ID)
	}
	require.Less(t, b.count(`SELECT count(DISTINCT xmin::text) FROM builds`), n*3/4)
}

// A caller that leaves while its build is being added does not know whether it was, so its
// files stay. One that leaves before that knows, and its files go.
func TestSubmitOfACallerThatLeaves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	must(b.builds.Submit(t.Context(), submission(t)))(t)
	release := b.locks(`LOCK TABLE builds`)
	ctx, leave := context.WithCancelCause(t.Context())
	early, s := &settled{}, submission(t)
	_, err := b.builds.Submit(ctx, submission(t), staged(func() error { leave(errors.New("the caller has left")); return nil }), early)
	require.ErrorContains(t, err, "the caller has left")
	require.NotErrorIs(t, err, store.ErrOutcomeUnknown)
	require.Equal(t, &settled{committed: true, aborted: true}, early)

	ctx, leave = context.WithCancelCause(t.Context())
	late, left := &settled{}, make(chan error, 1)
	go func() { _, err := b.builds.Submit(ctx, s, late); left <- err }()
	b.waits(1)
	leave(errors.New("the caller has left"))
	require.ErrorIs(t, <-left, store.ErrOutcomeUnknown)
	require.Equal(t, &settled{committed: true}, late)
	release()
	require.Eventually(t, func() bool { _, err := b.builds.Find(t.Context(), s.ID); return err == nil }, time.Minute, time.Millisecond)
}

// Files are committed before their row is visible, and removed again if there is certainly
// none.
func TestFilesAreSettled(t *testing.T) {
	t.Parallel()
	full := store.NewError(store.DiskFull, "Disk full")
	kept, removed, refused := settled{committed: true}, settled{committed: true, aborted: true}, settled{aborted: true}
	for name, c := range map[string]struct {
		cut    string // the request whose answer is lost
		file   settled
		submit settled
		finish settled
		report settled
	}{
		"accepted":                      {submit: kept, finish: kept, report: kept},
		"the file can't be committed":   {file: settled{err: full}, submit: refused, finish: refused, report: refused},
		"the commit's answer is lost":   {cut: "commit", submit: kept, finish: kept, report: kept},
		"the insert's answer is lost":   {cut: "insert_builds", submit: removed, finish: kept, report: kept},
		"the update's answer is lost":   {cut: "Build completed successfully", submit: kept, finish: kept, report: kept}, // it commits, too
		"the connection is lost before": {cut: "begin", submit: removed, finish: refused, report: refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, build, w := holding(t)
			cut := b.through()
			for method, m := range map[string]struct {
				want settled
				do   func(f store.Staged) error
			}{
				"Submit": {c.submit, func(f store.Staged) error { _, err := b.builds.Submit(t.Context(), submission(t), f); return err }},
				"Submit with a key": {c.submit, func(f store.Staged) error {
					_, err := b.builds.Submit(t.Context(), under("k", submission(t)), f)
					return err
				}},
				"Finish": {c.finish, func(f store.Staged) error {
					_, err := b.builds.Finish(t.Context(), success(build.ID, w.id), f)
					return err
				}},
				"Report": {c.report, func(f store.Staged) error {
					return b.workers.Report(t.Context(), store.DiagnosticReport{ID: "r", WorkerID: w.id, Status: store.Healthy, RunAt: time.Now(), Checks: []byte(`[]`)}, f)
				}},
			} {
				f := c.file
				if c.cut != "" {
					cut(c.cut)
				}
				err := m.do(&f)
				cut("nothing")
				f.err = nil
				require.Equal(t, m.want, f, "%s: %v", method, err)
			}
		})
	}
}
