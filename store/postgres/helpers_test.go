package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// fixture is one test's database with everything on it.
type fixture struct {
	*storetest.Database
	t       *testing.T
	builds  *postgres.Builds
	workers *postgres.Workers
	queue   *postgres.Queue
	except  []string // invariants that the test breaks by its tricks
	conns   int32    // that the handle has at most
}

func setup(t *testing.T) *fixture {
	t.Helper()
	db := storetest.New(t)
	b := &fixture{
		Database: db, t: t,
		builds:  postgres.NewBuilds(db.DB, postgres.BuildsConfig{}),
		workers: postgres.NewWorkers(db.DB),
		queue:   postgres.NewQueue(db.DB, postgres.QueueConfig{}),
		conns:   db.Pool.Config().MaxConns,
	}
	t.Cleanup(func() {
		if !t.Failed() {
			b.checkInvariants()
		}
	})
	return b
}

// checkInvariants holds after every test, whatever it did.
func (b *fixture) checkInvariants() {
	b.t.Helper()
	ctx := context.WithoutCancel(b.t.Context())
	db := postgres.New() // the test may have taken the pool away
	db.Use(b.Pool)
	for _, i := range broken(ctx, b.t, db) {
		name, _, _ := strings.Cut(i, ":")
		require.Contains(b.t, b.except, name, i)
	}
	if !slices.Contains(b.except, "lines") {
		require.Empty(b.t, b.badLines(), "each line has its number, and each line of takt its kind")
	}
	if slices.Contains(b.except, "deadlocks") {
		return
	}
	var deadlocks int
	require.NoError(b.t, b.Pool.QueryRow(ctx, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks))
	require.Zero(b.t, deadlocks)
}

// badLines returns lines whose number is missing, another's or not under the build's last
// one, or that takt wrote without saying what they are.
func (b *fixture) badLines() (bad []string) {
	b.t.Helper()
	rows := must(b.Pool.Query(context.WithoutCancel(b.t.Context()), `SELECT format('%s %s of %s: %s', number, kind, log_lines, message) FROM (
			SELECT l.*, b.log_lines, lag(number, 1, 0) OVER (PARTITION BY l.build ORDER BY l.seq) AS before FROM build_logs l JOIN builds b ON b.seq = l.build
		) l WHERE (number > before AND number <= log_lines AND (by_worker OR kind IS NOT NULL)) IS NOT TRUE`))(b.t)
	bad, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.t, err)
	return bad
}

// broken returns the invariants that do not hold, as "name: examples".
func broken(ctx context.Context, t *testing.T, db *postgres.DB) (all []string) {
	t.Helper()
	found, err := postgres.NewInvariants(db, nil).Check(ctx)
	require.NoError(t, err)
	for _, i := range found {
		if i.Broken > 0 {
			all = append(all, fmt.Sprintf("%s: %v", i.Name, i.Examples))
		}
	}
	return all
}

// fill adds $1 pending builds the short way.
const fill = `
WITH b AS (INSERT INTO builds (id, platform, token_hash)
SELECT 'build-' || lpad(to_hex(hashint8extended(i, 0)), 15, '0'), 'ios', '\x00' FROM generate_series(1, $1::bigint) i RETURNING id, seq)
INSERT INTO build_ids SELECT id, seq FROM b`

// exec runs a statement behind the store's back.
func (b *fixture) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.Pool.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

// count returns the number that a query finds.
func (b *fixture) count(sql string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

func (b *fixture) build(edit ...func(*store.Submission)) store.Build {
	b.t.Helper()
	return storetest.Build(b.t, b.DB, edit...)
}

func (b *fixture) worker(edit ...func(*store.Registration)) *client {
	b.t.Helper()
	w := storetest.Worker(b.t, b.DB, edit...)
	return &client{fixture: b, id: w.ID, number: w.Token.Worker, shown: w.Token.Counter}
}

// holding is setup with a build and a worker that holds it.
func holding(t *testing.T) (b *fixture, build store.Build, w *client) {
	t.Helper()
	b = setup(t)
	build, w = b.build(), b.worker()
	w.gets(build.ID)
	return b, build, w
}

// inDatabase runs f as a test of its own, with setup.
func inDatabase(t *testing.T, name string, f func(b *fixture)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f(setup(t))
	})
}

func (b *fixture) find(id string) store.Build {
	b.t.Helper()
	found, err := b.builds.Find(b.t.Context(), id)
	require.NoError(b.t, err)
	return found
}

// logs returns the messages of a build's log.
func (b *fixture) logs(id string) (messages []string) {
	b.t.Helper()
	for _, l := range storetest.Logs(b.t, b.DB, id, 0) {
		messages = append(messages, l.Message)
	}
	return messages
}

// assign serves polls and expects no error.
func (b *fixture) assign(polls ...store.Poll) []store.PollResult {
	b.t.Helper()
	results, err := b.queue.Assign(b.t.Context(), polls)
	require.NoError(b.t, err)
	require.Len(b.t, results, len(polls))
	return results
}

// waits returns when n statements wait for locks.
func (b *fixture) waits(n int) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var waiting int
		err := b.Pool.QueryRow(b.t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'object'`).Scan(&waiting) // 'object': all databases notify in turn
		return err == nil && waiting == n
	}, 4*time.Second, time.Millisecond)
}

func slots(n int) func(*store.Registration) { return func(r *store.Registration) { r.Slots = n } }

func takes(p ...store.Platform) func(*store.Registration) {
	return func(r *store.Registration) { r.Platforms = p }
}

func labelled(namesAndValues ...string) func(*store.Registration) {
	return func(r *store.Registration) {
		r.Labels = store.Labels{}
		for i := 0; i < len(namesAndValues); i += 2 {
			r.Labels[namesAndValues[i]] = namesAndValues[i+1]
		}
	}
}

func requires(text string) func(*store.Submission) {
	return func(s *store.Submission) { s.Require = store.StoredRequire(text) }
}

var (
	iosClass     = store.Class{ID: store.IOSClass, Platform: store.IOS}
	androidClass = store.Class{ID: store.AndroidClass, Platform: store.Android}
)

func on(p store.Platform) func(*store.Submission) {
	return func(s *store.Submission) { s.Platform = p }
}

func priority(n int) func(*store.Submission) { return func(s *store.Submission) { s.Priority = n } }

// client is a worker, what its token says, and what its controller remembers.
type client struct {
	*fixture
	id     string
	number uint32
	shown  uint64
	// known is what a controller remembers of the worker; nil if it does not.
	known *store.WorkerSession
}

// request returns a poll that shows the client's token.
func (c *client) request(edit ...func(*store.Poll)) store.Poll {
	p := store.Poll{Worker: c.number, WorkerID: c.id, Shown: c.shown, Used: c.shown}
	if c.known != nil {
		p.Session, p.Known = *c.known, true
	}
	for _, e := range edit {
		e(&p)
	}
	return p
}

// lost polls and loses the reply: the client keeps its token.
func (c *client) lost(edit ...func(*store.Poll)) store.PollResult {
	c.t.Helper()
	r := c.assign(c.request(edit...))[0]
	if r.Outcome == store.PollServed {
		c.known = &r.Session
	}
	return r
}

// next is the counter of the token that a worker gets with r.
func next(r store.PollResult) uint64 { return max(r.Session.Used+1, r.Handed) }

// poll polls and takes the new token over.
func (c *client) poll(edit ...func(*store.Poll)) store.PollResult {
	c.t.Helper()
	r := c.lost(edit...)
	if r.Outcome == store.PollServed {
		c.shown = next(r)
	}
	return r
}

// losing is what is told of the worker's first attempt at a build when it is lost.
func (c *client) losing(id string) store.BuildRef {
	return store.BuildRef{ID: id, Platform: store.IOS, WorkerID: c.id, Attempt: 1}
}

// plain returns references without their times, which must be known.
func plain(t *testing.T, refs []store.BuildRef) []store.BuildRef {
	t.Helper()
	refs = slices.Clone(refs)
	for i := range refs {
		require.False(t, refs[i].SubmittedAt.IsZero())
		require.True(t, refs[i].StartedAt.After(refs[i].SubmittedAt) || refs[i].StartedAt.Before(time.Now().Add(-time.Minute)), "%s", refs[i].StartedAt)
		refs[i].SubmittedAt, refs[i].StartedAt, refs[i].Position, refs[i].ClassID = time.Time{}, time.Time{}, 0, 0
	}
	return refs
}

// gets polls and expects build id; "" for none.
func (c *client) gets(id string, edit ...func(*store.Poll)) store.PollResult {
	c.t.Helper()
	r := c.poll(edit...)
	require.Equal(c.t, store.PollServed, r.Outcome)
	require.Equal(c.t, id, jobID(r))
	return r
}

func jobID(r store.PollResult) string {
	if r.Jobs.First() == nil {
		return ""
	}
	return r.Jobs.First().BuildID
}

func (c *client) heartbeat(build string) store.Heartbeat {
	return store.Heartbeat{BuildID: build, WorkerID: c.id}
}

// touch is RecordHeartbeat for who wants its error only.
func (b *fixture) touch(ctx context.Context, s store.Heartbeat) error {
	_, err := b.builds.RecordHeartbeat(ctx, s)
	return err
}

// finishes reports success.
func (c *client) finishes(build string) {
	c.t.Helper()
	done, err := c.builds.Finish(c.t.Context(), success(build, c.id))
	require.NoError(c.t, err)
	require.False(c.t, done.Repeat)
}

func success(build, worker string) store.Result {
	file := storetest.File("builds/"+build+"/result.ipa", "result of "+build)
	return store.Result{BuildID: build, WorkerID: worker, Success: true, File: &file}
}

func failure(build, worker string) store.Result {
	return store.Result{BuildID: build, WorkerID: worker, ErrorMessage: "exit status 1"}
}

func (c *client) find() store.WorkerDetail {
	c.t.Helper()
	w, err := c.workers.Show(c.t.Context(), c.id)
	require.NoError(c.t, err)
	return w
}

// parked makes a poll that was parked when its worker's row was as in r.
func parked(r store.PollResult) func(*store.Poll) {
	return func(p *store.Poll) { p.Parked, p.Handed = true, r.Session.Handed }
}

func lists(builds ...string) func(*store.Poll) {
	return func(p *store.Poll) { p.Reconcile, p.Active = true, builds }
}

// byID makes a poll that shows no token.
func (c *client) byID() func(*store.Poll) {
	return func(p *store.Poll) { p.Worker, p.Shown, p.Used, p.Known = 0, 0, 0, false }
}

// settled is a staged file that notes what becomes of it.
type settled struct {
	committed, aborted bool
	err                error // of Commit
}

func (f *settled) Commit(context.Context) error {
	f.committed = f.err == nil
	return f.err
}

func (f *settled) Rename() error         { return nil }
func (f *settled) Abort(context.Context) { f.aborted = true }

// staged is a file whose Commit is a function. Nothing is left to abort.
type staged func() error

func (f staged) Rename() error                { return nil }
func (f staged) Commit(context.Context) error { return f() }
func (f staged) Abort(context.Context)        {}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}

// codeOf is store.CodeOf for a method that returns a value too.
func codeOf[T any](_ T, err error) store.Code { return store.CodeOf(err) }

// listed is must for a page of a list.
func listed[T any](rows []T, _ store.Cursor, err error) func(testing.TB) []T { return must(rows, err) }
