package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/store"
)

// methods calls every method of the package once.
func (b *fixture) methods(ctx context.Context) map[string]error {
	s := store.Heartbeat{BuildID: "b", WorkerID: "w"}
	errs := map[string]error{}
	_, errs["Submit"] = b.builds.Submit(ctx, submission(b.t))
	_, errs["Find"] = b.builds.Find(ctx, "b")
	_, _, errs["List"] = b.builds.List(ctx, store.BuildFilter{}, store.Page{})
	errs["Cancel"] = b.builds.Cancel(ctx, "b", "", "")
	_, errs["Held"] = b.builds.Held(ctx, s)
	_, errs["RecordHeartbeat"] = b.builds.RecordHeartbeat(ctx, s)
	_, errs["Heartbeat"] = b.builds.Heartbeat(ctx, s)
	_, errs["Finish"] = b.builds.Finish(ctx, success("b", "w"))
	_, errs["Tail"] = b.builds.Tail(ctx, "b", 0, 1)
	_, errs["Counts"] = b.builds.Counts(ctx)
	_, errs["Register"] = b.workers.Register(ctx, store.Registration{ID: "w"})
	_, errs["Unregister"] = b.workers.Unregister(ctx, store.WorkerToken{Worker: 1})
	_, errs["UnregisterID"] = b.workers.UnregisterID(ctx, "w", "")
	_, errs["FindWorker"] = b.workers.Show(ctx, "w")
	_, errs["Assign"] = b.queue.Assign(ctx, make([]store.Poll, 1))
	_, errs["Recount"] = b.queue.Recount(ctx, 1, nil, nil)
	_, errs["RecordPresence"] = b.queue.RecordPresence(ctx, make([]store.Presence, 1))
	_, errs["Sweep"] = b.queue.Sweep(ctx, sweep())
	_, _, errs["Timeouts"] = b.queue.Timeouts(ctx)
	errs["SaveTimeouts"] = b.queue.SaveTimeouts(ctx, store.Timeouts{})
	errs["Ping"] = b.DB.Ping(ctx)
	return errs
}

func requireUnavailable(t *testing.T, errs map[string]error, cause error) {
	t.Helper()
	for name, err := range errs {
		require.Equal(t, store.Unavailable, store.CodeOf(err), "%s: %v", name, err)
		var e *store.Error
		require.ErrorAs(t, err, &e)
		require.GreaterOrEqual(t, e.RetryAfter, time.Second, name)
		require.Less(t, e.RetryAfter, 2*time.Second, name)
		if cause != nil {
			require.ErrorIs(t, err, cause, name)
		}
	}
}

func TestWithoutAPoolEveryMethodFailsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cause := errors.New("PostgreSQL is being restarted")
	b.DB.Drop(cause)
	requireUnavailable(t, b.methods(t.Context()), cause)
	b.DB.Use(b.Pool)
	require.NoError(t, b.DB.Ping(t.Context()))

	closed := must(pgxpool.NewWithConfig(t.Context(), b.Pool.Config()))(t)
	closed.Close()
	b.DB.Use(closed)
	requireUnavailable(t, b.methods(t.Context()), nil)
	b.DB.Use(b.Pool)
}

func TestAnEndedBackendIsUnavailableAndTheNextCallWorks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := submission(t)
	once := under("k", id)
	once.Once.Seal = func(store.Build) ([]byte, error) { // within the transaction
		_, err := b.Pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle in transaction'`)
		return []byte{}, err
	}
	_, err := b.builds.Submit(t.Context(), once)
	require.Equal(t, store.Unavailable, store.CodeOf(err), "%v", err)
	must(b.builds.Submit(t.Context(), id))(t)
}

func TestACallerThatGoesAwayIsNoOutage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	left := errors.New("client left")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(left)
	for name, err := range b.methods(ctx) {
		require.ErrorIs(t, err, left, name)
		require.NotEqual(t, store.Unavailable, store.CodeOf(err), name)
	}
}

// cutter is a connection that swallows the answer to a chosen request.
type cutter struct {
	net.Conn
	armed *atomic.Pointer[string] // cut after a request that holds this text
	cut   atomic.Bool
}

func (c *cutter) Write(p []byte) (int, error) {
	if text := c.armed.Load(); text != nil && strings.Contains(string(p), *text) {
		c.armed.Store(nil)
		c.cut.Store(true)
	}
	return c.Conn.Write(p)
}

func (c *cutter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p) // the server has done it
	if c.cut.Load() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// through makes the handle use a pool whose next request with that text is
// answered into the void.
func (b *fixture) through() (cut func(text string)) {
	b.t.Helper()
	armed := &atomic.Pointer[string]{}
	cfg := b.Pool.Config()
	cfg.MaxConns, b.conns = 1, 1
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &cutter{Conn: conn, armed: armed}, err
	}
	pool := must(pgxpool.NewWithConfig(b.t.Context(), cfg))(b.t)
	b.t.Cleanup(pool.Close)
	b.DB.Use(pool)
	require.NoError(b.t, b.DB.Ping(b.t.Context()))
	return func(text string) { armed.Store(&text) }
}

func TestALostAnswerToACommitIsSaidToBeUnknown(t *testing.T) {
	t.Parallel()
	b, build, w := holding(t)
	cut := b.through()

	cut("commit")
	s := submission(t)
	_, err := b.builds.Submit(t.Context(), s)
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.ErrorIs(t, err, store.ErrOutcomeUnknown)
	require.Equal(t, store.Pending, b.find(s.ID).State, "it stands")

	b.build() // counts, so that the next need not
	s = submission(t)
	cut("commit")
	_, err = b.builds.Submit(t.Context(), s)
	require.ErrorIs(t, err, store.ErrOutcomeUnknown)
	require.Equal(t, store.Pending, b.find(s.ID).State, "it stands too")

	other := b.worker()
	other.finishes(other.poll().Jobs.First().BuildID) // prepares the statements
	cut("Build completed successfully")               // in the second round trip, with the commit
	_, err = b.builds.Finish(t.Context(), success(build.ID, w.id))
	require.ErrorIs(t, err, store.ErrOutcomeUnknown)
	require.True(t, must(b.builds.Finish(t.Context(), success(build.ID, w.id)))(t).Repeat, "the worker's second try is the identical repeat")
}

// The whole batch's answer is lost: the workers show the tokens that they have
// and get the same builds.
func TestALostAnswerToABatchLosesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	builds := map[string]bool{b.build().ID: true, b.build().ID: true}
	one, two := b.worker(), b.worker(slots(2))
	cut := b.through()
	b.assign(b.worker(takes("amiga")).request()) // prepares the statements
	cut(one.id)                                  // the second round trip names it
	polls := func() []store.Poll { return []store.Poll{one.request(), two.request()} }
	_, err := b.queue.Assign(t.Context(), polls())
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.ErrorIs(t, err, store.ErrOutcomeUnknown)
	for _, r := range b.assign(polls()...) {
		require.Equal(t, store.PollServed, r.Outcome)
		require.True(t, r.Redelivered)
		require.True(t, builds[r.Jobs.First().BuildID])
		delete(builds, r.Jobs.First().BuildID)
	}
	require.Empty(t, builds)
}

func TestWorkersAreFoundAndRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(takes(store.IOS), slots(3), func(r *store.Registration) { r.Capabilities = []byte(`{"cpu": {"cores": 8}}`) })
	found := w.find()
	require.Equal(t, "test worker", found.Name)
	require.JSONEq(t, `{"cpu": {"cores": 8}}`, string(found.Capabilities))
	require.Equal(t, []store.Platform{store.IOS}, found.Platforms)
	require.Equal(t, 3, found.Slots)
	require.Equal(t, store.NotFound, codeOf(b.workers.Show(t.Context(), "none")))
	require.Equal(t, store.InvalidToken, codeOf(b.workers.Unregister(t.Context(), store.WorkerToken{Worker: 1 << 31, Counter: 1})))
	require.Equal(t, store.NotFound, codeOf(b.workers.UnregisterID(t.Context(), "none", "")))
	require.Equal(t, store.RegistrationFailed, codeOf(b.workers.Register(t.Context(), store.Registration{ID: "x", Capabilities: []byte(`{"a": "\u0000"}`)})))
}

func TestAnUnregisteredWorkerMayPollByItsID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker()
	must(b.workers.UnregisterID(t.Context(), w.id, ""))(t)
	require.Equal(t, store.PollInvalidToken, w.lost().Outcome)
	w.gets("", w.byID())
	require.Equal(t, store.Idle, w.find().Status, "it polls by its id, so it is back")
}
