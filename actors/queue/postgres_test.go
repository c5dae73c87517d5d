package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/queue"
	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// controller is one takt's QueueManager on a real database.
type controller struct {
	sys    *otp.System
	bus    pubsub.Bus
	queue  *queue.Queue
	tokens *store.WorkerTokens
}

// next is the poll that follows req when r has answered it.
func (c *controller) next(tb testing.TB, req store.PollRequest, r store.PollReply) store.PollRequest {
	tb.Helper()
	if r.Token == req.Presented { // it was superseded
		return req
	}
	token, err := c.tokens.Check(r.Token)
	require.NoError(tb, err)
	return store.PollRequest{Token: token, Presented: r.Token}
}

func newController(tb testing.TB, db *postgres.DB) *controller {
	tb.Helper()
	return newControllerWith(tb, db, queue.Config{})
}

func newControllerWith(tb testing.TB, db *postgres.DB, cfg queue.Config) *controller {
	tb.Helper()
	c := &controller{sys: otp.New(otp.Options{Logger: zerolog.Nop()}), bus: pubsub.New(), tokens: storetest.Tokens(tb, db)}
	c.queue = queue.New(c.sys, postgres.NewQueue(db, postgres.QueueConfig{}), c.bus, c.tokens, cfg)
	_, err := c.sys.StartRoot(tb.Context(), "takt", otp.SupSpec{
		Intensity: 1000,
		Children:  []otp.ChildSpec{c.bus.Spec(), c.queue.Spec()},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() {
		c.sys.Shutdown(context.Background())
		require.Zero(tb, c.sys.Leaked())
	})
	return c
}

// fleet is workers that poll controllers, build what they get and report it.
type fleet struct {
	testing.TB
	builds      *postgres.Builds
	controllers []*controller
	wait        time.Duration
	max         int // how many builds a poll asks for
	stop        context.CancelCauseFunc
	ctx         context.Context
	running     sync.WaitGroup

	mu       sync.Mutex                 // guards what follows
	holders  map[string]map[string]bool // of each build, as the workers saw it
	finished int
	defects  []error
}

func newFleet(tb testing.TB, db *postgres.DB, wait time.Duration, controllers ...*controller) *fleet {
	tb.Helper()
	f := &fleet{
		TB: tb, builds: postgres.NewBuilds(db, postgres.BuildsConfig{}), controllers: controllers, wait: wait,
		holders: map[string]map[string]bool{},
	}
	f.ctx, f.stop = context.WithCancelCause(tb.Context())
	return f
}

// join starts workers. Each polls the controllers in turn.
func (f *fleet) join(workers ...storetest.RegisteredWorker) {
	for i, w := range workers {
		f.running.Go(func() { f.work(w, i) })
	}
}

// leave stops the workers.
func (f *fleet) leave() {
	f.stop(errors.New("the fleet leaves"))
	f.running.Wait()
}

func (f *fleet) work(w storetest.RegisteredWorker, n int) {
	req := w.Request()
	for ; f.ctx.Err() == nil; n++ {
		c := f.controllers[n%len(f.controllers)]
		req.Max = f.max
		reply, err := c.queue.Poll(f.ctx, req, f.wait)
		if err != nil {
			f.failed(err)
			continue
		}
		req = c.next(f, req, reply)
		for _, job := range reply.Jobs {
			f.holds(job.BuildID, w.ID)
			f.finish(job, w.ID)
		}
	}
}

// finish reports a result until it is accepted.
func (f *fleet) finish(j *store.Job, worker string) {
	for f.ctx.Err() == nil {
		done, err := f.builds.Finish(f.ctx, store.Result{BuildID: j.BuildID, WorkerID: worker, Attempt: j.Attempt})
		if err != nil {
			f.failed(err)
			continue
		}
		if !done.Repeat {
			f.mu.Lock()
			f.finished++
			f.mu.Unlock()
		}
		return
	}
}

func (f *fleet) holds(build, worker string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holders[build] == nil {
		f.holders[build] = map[string]bool{}
	}
	f.holders[build][worker] = true
}

// failed notes an error. Those that say "try again" cost a moment.
func (f *fleet) failed(err error) {
	if f.ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	if store.CodeOf(err) != store.Unavailable {
		f.defects = append(f.defects, err)
	}
	f.mu.Unlock()
	select {
	case <-f.ctx.Done():
	case <-time.After(5 * time.Millisecond):
	}
}

// finishes waits until n builds are finished.
func (f *fleet) finishes(n int) {
	f.Helper()
	require.Eventually(f, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.finished >= n
	}, 60*time.Second, 5*time.Millisecond)
}

// check compares the workers' view with the database: n builds, all finished,
// none seen by two workers, none assigned twice.
func (f *fleet) check(pool *pgxpool.Pool, n int) {
	f.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Empty(f, f.defects)
	require.Len(f, f.holders, n)
	for id, workers := range f.holders {
		require.Len(f, workers, 1, "build %s was seen by several workers", id)
	}
	var total, done, twice, lines int
	require.NoError(f, pool.QueryRow(f.Context(),
		`SELECT count(*), count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE attempt <> 1),
			(SELECT count(*) FROM build_logs WHERE message LIKE 'Assigned to worker %') FROM builds`).
		Scan(&total, &done, &twice, &lines))
	require.Equal(f, []int{n, n, 0, n}, []int{total, done, twice, lines})
}

func workers(tb testing.TB, db *postgres.DB, n int) []storetest.RegisteredWorker {
	tb.Helper()
	list := make([]storetest.RegisteredWorker, n)
	for i := range list {
		list[i] = storetest.Worker(tb, db)
	}
	return list
}

func TestTwoControllers(t *testing.T) {
	t.Parallel()
	const pollers, count = 50, 500
	db := storetest.New(t)
	one, two := newController(t, db.DB), newController(t, db.DB)
	f := newFleet(t, db.DB, 3*time.Second, one, two)
	f.join(workers(t, db.DB, pollers)...)
	for i := range count {
		b := storetest.Build(t, db.DB, func(s *store.Submission) { s.Platform = []store.Platform{store.IOS, store.Android}[i%2] })
		if i%3 > 0 { // nobody hears of the others: the count has to find them
			one.queue.Enqueued(b)
		}
	}
	f.finishes(count)
	f.leave()
	f.check(db.Pool, count)
}

// Workers with several slots that ask for as many builds get each once, at two controllers, and
// one that is alone needs fewer polls than it gets builds.
func TestPollsForSeveralBuilds(t *testing.T) {
	t.Parallel()
	for pollers, count := range map[int]int{1: 200, 12: 300} {
		db := storetest.New(t)
		one, two := newController(t, db.DB), newController(t, db.DB)
		f := newFleet(t, db.DB, time.Second, one, two)
		f.max = 4
		for i := range count {
			storetest.Build(t, db.DB, func(s *store.Submission) { s.Platform = []store.Platform{store.IOS, store.Android}[i%2] })
		}
		for range pollers {
			f.join(storetest.Worker(t, db.DB, func(r *store.Registration) { r.Slots = 4 }))
		}
		f.finishes(count)
		f.leave()
		f.check(db.Pool, count)
		a, b := one.queue.Stats(), two.queue.Stats()
		require.EqualValues(t, count, a.Assigned+b.Assigned, "each hand-out counts")
		if pollers == 1 {
			require.Less(t, a.Polls+b.Polls, a.Assigned+b.Assigned)
		}
	}
}

// A batch of one controller has locked a build that it then does not hand out, because its
// worker's row is locked elsewhere. Meanwhile the other controller has passed over the
// build. It hears of the build as soon as that is free again, long before its next count.
func TestABuildThatWasLockedInVainWakesTheOtherController(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	other := storetest.Another(t, db)
	seldom := queue.Config{Recount: time.Hour}
	one, two := newControllerWith(t, db.DB, seldom), newControllerWith(t, other.DB, seldom)
	listener, err := pgx.ConnectConfig(t.Context(), db.Config)
	require.NoError(t, err)
	exec := func(c interface {
		Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	}, sql string, args ...any,
	) {
		t.Helper()
		_, err := c.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	// Both builds become pending at once, when their worker goes: a count that found only one
	// would wake only one poll.
	gone := storetest.Worker(t, db.DB, func(r *store.Registration) { r.Slots = 2 })
	for req := gone.Request(); one.queue.Stats().Assigned < 2; {
		storetest.Build(t, db.DB)
		reply, err := one.queue.Poll(t.Context(), req, 0)
		require.NoError(t, err)
		require.NotNil(t, reply.Jobs.First())
		req = one.next(t, req, reply)
	}
	all := workers(t, db.DB, 3)
	results := make([]chan store.PollReply, len(all))
	for i, c := range []*controller{one, one, two} {
		results[i] = make(chan store.PollReply, 1)
		go func() {
			reply, err := c.queue.Poll(t.Context(), all[i].Request(), time.Minute)
			if err == nil {
				results[i] <- reply
			}
		}()
	}
	require.Eventually(t, func() bool { return one.queue.Stats().Parked == 2 && two.queue.Stats().Parked == 1 }, time.Minute, time.Millisecond)

	exec(db.Pool, `CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$`)
	exec(db.Pool, `CREATE TRIGGER pause BEFORE UPDATE ON builds FOR EACH ROW WHEN (NEW.state <> 'pending') EXECUTE FUNCTION pause()`)
	held, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	exec(held, `SELECT pg_advisory_xact_lock(1)`)
	worker, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = worker.Rollback(context.WithoutCancel(t.Context())) }()
	exec(worker, `SELECT FROM workers WHERE id = $1 FOR UPDATE`, all[1].ID)
	left, err := postgres.NewWorkers(db.DB).UnregisterID(t.Context(), gone.ID, "")
	require.NoError(t, err)
	exec(listener, `LISTEN takt`)

	one.queue.Requeued(left.Requeued)
	require.Eventually(t, func() bool {
		var waiting int
		err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waiting)
		return err == nil && waiting == 1
	}, time.Minute, time.Millisecond)
	two.bus.PublishRemote(pubsub.JobAvailable, "ios", 0)
	require.Eventually(t, func() bool { s := two.queue.Stats(); return s.Batches == 2 && s.Parked == 1 }, time.Minute, time.Millisecond)

	require.NoError(t, held.Rollback(t.Context()))
	begun := time.Now()
	require.NotNil(t, (<-results[0]).Jobs.First())
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n, err := listener.WaitForNotification(soon)
	require.NoError(t, listener.Close(t.Context()))
	require.NoError(t, err)
	require.Equal(t, "job:available ios", n.Payload)
	two.bus.PublishRemote(pubsub.JobAvailable, "ios", 0)
	require.NotNil(t, (<-results[2]).Jobs.First())
	t.Logf("woken after %s", time.Since(begun))
	require.Less(t, time.Since(begun), 5*time.Second, "a count, or an old one, would come later")
}

// A build that comes before others because it is its submitter's turn, or by its priority, is
// below the mark of a controller that has claimed further already. It hears of the position.
func TestABuildThatComesBeforeOthersIsClaimedByTheOtherController(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	two := newControllerWith(t, storetest.Another(t, db).DB, queue.Config{Recount: time.Hour})
	listener := database.NewListener(database.ListenerConfig{
		Source: func(context.Context) (*pgx.ConnConfig, error) { return db.Config, nil }, Bus: two.bus,
	})
	resumed, heard := make(chan struct{}, 1), make(chan string, 100)
	two.bus.Subscribe(func(pubsub.Event) { resumed <- struct{}{} }, pubsub.ListenerResumed)
	two.bus.Subscribe(func(e pubsub.Event) {
		if argument, _ := e.Data.(string); e.Remote {
			heard <- argument
		}
	}, pubsub.JobAvailable)
	listens := otp.New(otp.Options{Logger: zerolog.Nop()})
	_, err := listens.StartRoot(t.Context(), "takt", otp.SupSpec{Children: []otp.ChildSpec{listener.Spec()}})
	require.NoError(t, err)
	t.Cleanup(func() { listens.Shutdown(context.Background()) })
	<-resumed

	submit := func(priority int) store.Build {
		t.Helper()
		b := storetest.Build(t, db.DB, func(s *store.Submission) { s.Priority = priority })
		<-heard
		return b
	}
	claimed := func() string {
		t.Helper()
		reply, err := two.queue.Poll(t.Context(), storetest.Worker(t, db.DB).Request(), 0)
		require.NoError(t, err)
		require.NotNil(t, reply.Jobs.First())
		return reply.Jobs.First().BuildID
	}
	var flood []store.Build
	for range 6 {
		flood = append(flood, submit(0))
	}
	for i := range 3 {
		require.Equal(t, flood[i].ID, claimed())
	}
	require.Equal(t, submit(1).ID, claimed())
	require.Equal(t, flood[3].ID, claimed())
	_, err = postgres.NewBuilds(db.DB, postgres.BuildsConfig{}).SetPriority(t.Context(), flood[5].ID, 3)
	require.NoError(t, err)
	<-heard
	require.Equal(t, flood[5].ID, claimed())
	require.Equal(t, flood[4].ID, claimed())
}

// A process is parked at one controller; another process of the same worker registers at
// the other, which learns of the first from the database only.
func TestTwoProcessesOfOneWorkerAtTwoControllers(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	other := storetest.Another(t, db)
	one, two := newController(t, db.DB), newController(t, other.DB)
	w := storetest.Worker(t, db.DB, func(r *store.Registration) { r.Instance = "a" })
	exec := func(sql string) {
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`UPDATE workers SET last_seen_at = now() - interval '1 h'`)
	first := w.Request()
	first.Instance = "a"
	parked, err := one.queue.Arrive(t.Context(), first, time.Minute)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { _, err := parked(t.Context(), nil); ended <- err }()
	require.Eventually(t, func() bool {
		var recent bool
		err := db.Pool.QueryRow(t.Context(), `SELECT last_seen_at > now() - interval '25 s' FROM workers`).Scan(&recent)
		return err == nil && recent
	}, time.Minute, 10*time.Millisecond)

	workers := postgres.NewWorkers(other.DB)
	again := store.Registration{ID: w.ID, Name: "w", Slots: 1, Instance: "b"}
	_, err = workers.Register(t.Context(), again)
	require.Equal(t, store.DuplicateWorker, store.CodeOf(err), "a parked poll is no silence")

	var reg store.Registered
	require.Eventually(t, func() bool { // unless the first one's presence is written in between
		exec(`UPDATE workers SET last_seen_at = now() - interval '31 s'`)
		reg, err = workers.Register(t.Context(), again)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, store.DuplicateWorker, store.CodeOf(<-ended))
	_, err = one.queue.Poll(t.Context(), first, 0)
	require.Equal(t, store.DuplicateWorker, store.CodeOf(err), "the first speaks again")
	for _, c := range []*controller{two, one} {
		reply, err := c.queue.Poll(t.Context(), store.PollRequest{Token: reg.Token, Presented: "b", Instance: "b"}, 0)
		require.NoError(t, err)
		reg.Token, err = c.tokens.Check(reply.Token)
		require.NoError(t, err)
	}
}
