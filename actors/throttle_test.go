package actors_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors"
	"takt/actors/pubsub"
	"takt/actors/throttle"
	"takt/http/hubspottest"
	"takt/store"
	"takt/store/hubspot"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// fixture is a HubSpot and a database for the controllers of one test.
type fixture struct {
	t    *testing.T
	db   *storetest.Database
	hs   *hubspottest.HubSpot
	base string
	stop func()
	keys *seal.Ring
	// call is how long a call to HubSpot may take.
	call time.Duration
}

const firstPortal = int64(9001)

func newFixture(t *testing.T, cfg hubspottest.Config, portals int) *fixture {
	t.Helper()
	hs := hubspottest.New(cfg)
	for i := range portals {
		hs.AddPortal(firstPortal + int64(i))
	}
	base, stop := hs.Start()
	t.Cleanup(stop)
	return &fixture{t: t, db: storetest.New(t), hs: hs, base: base, stop: stop, keys: seal.NewRing(seal.Key{}), call: 2 * time.Second}
}

// unlimited takes HubSpot's own limit out of the way.
func unlimited() hubspottest.Config { return hubspottest.Config{RollingLimit: -1} }

// controller starts a tree. Its calls take at most two seconds, unless h.call says
// otherwise, so that what a killed one has claimed is free after three.
func (h *fixture) controller(edit ...func(*throttle.Config)) node {
	h.t.Helper()
	db := postgres.New()
	th := must(postgres.NewThrottle(db))(h.t)
	cfg := throttle.Config{Snooze: time.Second, Full: time.Second, Poll: 100 * time.Millisecond, Blocked: time.Second}
	for _, e := range edit {
		e(&cfg)
	}
	client := hubspot.NewClient(hubspot.Config{API: h.base, Timeout: h.call})
	database := h.db.Config
	tree := actors.New(actors.Config{
		Database: func(context.Context) (*pgx.ConnConfig, error) { return database.Copy(), nil },
		Throttle: cfg,
	}, actors.Deps{
		Keys:   postgres.NewKeys(db, &store.KeyRing{}),
		Logger: zerolog.New(h.t.Output()).Level(zerolog.WarnLevel), DB: db, Rows: postgres.NewFiles(db), Heijunka: postgres.NewHeijunka(db), Invariants: postgres.NewInvariants(db, nil),
		Throttle: &throttle.Deps{Store: th, HubSpot: client, Keys: h.keys, App: hubspot.App{
			ClientID: h.hs.Config().ClientID, ClientSecret: h.hs.Config().ClientSecret, RedirectURL: "http://127.0.0.1/back",
		}},
	})
	require.NoError(h.t, tree.Start(h.t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil }))
	n := node{Tree: tree, db: db}
	h.t.Cleanup(func() { n.stop(h.t); client.CloseIdle() })
	require.Eventually(h.t, tree.Ready, time.Minute, 10*time.Millisecond)
	return n
}

func (n node) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(t.Context()), time.Minute, context.DeadlineExceeded)
	defer cancel()
	require.Empty(t, n.Stop(ctx))
}

// install authorizes portals as an installer's browser does.
func (h *fixture) install(n node, portals ...int64) {
	h.t.Helper()
	for _, p := range portals {
		at, secret, err := n.Throttle.Tokens.Authorize(h.t.Context())
		require.NoError(h.t, err)
		back := must(h.hs.Agree(h.t.Context(), at, p))(h.t)
		require.Equal(h.t, p, must(n.Throttle.Tokens.Install(h.t.Context(), back.Get("state"), secret, back.Get("code")))(h.t))
	}
}

func (h *fixture) rate(n node, portal int64, most, period int, unit store.TimeUnit) {
	h.t.Helper()
	must(n.Throttle.PutConfig(h.t.Context(), store.ThrottleConfig{PortalID: portal, ActionID: 1, MaxThroughput: most, TimePeriod: period, TimeUnit: unit}))(h.t)
}

func actionOf(portal int64, workflow, i int) store.Action {
	return store.Action{
		Queue:      store.QueueKey{PortalID: portal, WorkflowID: fmt.Sprint(workflow), ActionID: 1, Index: "0"},
		CallbackID: fmt.Sprintf("cb-%d-%d-%d", portal, workflow, i), Expires: time.Hour,
	}
}

// send hands n actions over, many at once.
func (h *fixture) send(n node, portal int64, workflow, count int) {
	h.t.Helper()
	var wg sync.WaitGroup
	errs := make(chan error, count)
	for i := range count {
		wg.Go(func() {
			_, err := n.Throttle.Accept(h.t.Context(), actionOf(portal, workflow, i))
			errs <- err
		})
	}
	wg.Wait()
	for range count {
		require.NoError(h.t, <-errs)
	}
}

func (h *fixture) completed(want int) {
	h.t.Helper()
	require.Eventually(h.t, func() bool { return h.hs.Distinct() >= want }, time.Minute, 10*time.Millisecond, "%d of %d were completed", h.hs.Distinct(), want)
	require.Equal(h.t, want, h.hs.Distinct())
}

// settled waits until nothing waits, and checks that all ended as completed.
func (h *fixture) settled(want int) {
	h.t.Helper()
	var waiting, done int
	require.Eventually(h.t, func() bool {
		err := h.db.Pool.QueryRow(h.t.Context(), `SELECT count(*) FILTER (WHERE state = 'waiting'), count(*) FILTER (WHERE state = 'completed') FROM action_executions`).Scan(&waiting, &done)
		return err == nil && waiting == 0
	}, time.Minute, 10*time.Millisecond)
	require.Equal(h.t, want, done)
}

// ofQueue filters the record.
func ofQueue(list []hubspottest.Completion, portal int64, workflow int) (out []hubspottest.Completion) {
	prefix := fmt.Sprintf("cb-%d-%d-", portal, workflow)
	for _, c := range list {
		if c.PortalID == portal && len(c.CallbackID) > len(prefix) && c.CallbackID[:len(prefix)] == prefix {
			out = append(out, c)
		}
	}
	return out
}

func TestActionsAreCompletedAtTheirRate(t *testing.T) {
	t.Parallel()
	h := newFixture(t, hubspottest.Config{}, 1)
	n := h.controller()
	h.install(n, firstPortal)
	_, err := n.Throttle.Accept(t.Context(), actionOf(firstPortal, 1, 0))
	require.Equal(t, store.InvalidArgument, store.CodeOf(err), "no rate is set, and that is not remembered")
	h.rate(n, firstPortal, 20, 1, store.Second)
	h.send(n, firstPortal, 1, 60)
	h.completed(60)
	h.settled(60)
	require.LessOrEqual(t, hubspottest.MostInAnyWindow(h.hs.Completions(), time.Second), 20)
	again := must(n.Throttle.Accept(t.Context(), actionOf(firstPortal, 1, 0)))(t)
	require.True(t, again.Repeat)
	require.Equal(t, store.ActionCompleted, again.State)
	require.Eventually(t, func() bool { // the job ends when nothing waits
		var live int
		err := h.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'throttle' AND state <> 'completed'`).Scan(&live)
		return err == nil && live == 0
	}, time.Minute, 20*time.Millisecond)
}

// The rate is changed by somebody else than the controllers that send, which no job
// reminds: they are told by PostgreSQL.
func TestAChangedRateAppliesToTheBacklogAtOnce(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 1)
	n := h.controller(func(c *throttle.Config) { c.Snooze = time.Hour })
	h.install(n, firstPortal)
	other := must(postgres.NewThrottle(n.db))(t)
	h.rate(n, firstPortal, 1, 1, store.Day)
	h.send(n, firstPortal, 2, 30)
	h.completed(1)
	changed := time.Now()
	must(other.PutConfig(t.Context(), store.ThrottleConfig{PortalID: firstPortal, ActionID: 1, MaxThroughput: 100, TimePeriod: 1, TimeUnit: store.Second}))(t)
	h.completed(30) // does not wait for tomorrow
	require.True(t, h.hs.Completions()[1].At.After(changed))
}

// No webhook comes that would wake the other controller: the queue's job does.
func TestAQueueWhoseControllerHasEndedIsTakenOver(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 1)
	n, gone := h.controller(), h.controller()
	h.install(n, firstPortal)
	h.rate(gone, firstPortal, 1, 1, store.Day)
	h.send(gone, firstPortal, 1, 30)
	h.completed(1)
	gone.stop(t)
	h.rate(n, firstPortal, 20, 1, store.Second)
	h.completed(30)
	h.settled(30)
}

// All calls to one portal hang, and none is given up before the test's end.
func TestADeadPortalDelaysNoOther(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 2)
	h.call = time.Hour
	n := h.controller()
	alive, dead := firstPortal, firstPortal+1
	h.install(n, alive, dead)
	h.rate(n, alive, 1000, 1, store.Second)
	h.rate(n, dead, 1000, 1, store.Second)
	h.hs.Fail(dead, hubspottest.Fault{Status: 503, Delay: time.Hour})
	h.send(n, dead, 7, 1000)
	require.Eventually(t, func() bool { return h.hs.Calls(dead) > 0 }, time.Minute, time.Millisecond)
	for i := range 20 {
		must(n.Throttle.Accept(t.Context(), actionOf(alive, 1, i)))(t)
		h.completed(i + 1)
	}
	h.stop() // ends the calls
}

func TestHubSpotsMoodsAreSurvived(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]hubspottest.Fault{
		"a rate limit":              {{Status: 429, Header: map[string]string{"retry-after": "1"}, Times: 2}},
		"a time-out":                {{Status: 500, Delay: time.Minute, Times: 1}},
		"a cut connection":          {{Times: 1}},
		"one that it does not know": {{Status: 400, Body: `{"message":"unknown callback"}`, Only: "cb-9001-1-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, unlimited(), 1)
			n := h.controller()
			h.install(n, firstPortal)
			h.rate(n, firstPortal, 100, 1, store.Second)
			h.hs.Fail(firstPortal, faults...)
			h.send(n, firstPortal, 1, 10)
			if faults[0].Only == "" {
				h.completed(10)
				h.settled(10)
				return
			}
			h.completed(9) // it alone fails
			var failures int
			require.Eventually(t, func() bool {
				err := h.db.Pool.QueryRow(t.Context(), `SELECT failures FROM action_executions WHERE state = 'waiting'`).Scan(&failures)
				return err == nil && failures > 0
			}, time.Minute, 10*time.Millisecond)
		})
	}
}

func TestA401IsOneForcedRefresh(t *testing.T) {
	t.Parallel()
	h := newFixture(t, hubspottest.Config{RollingLimit: -1, Rotate: true}, 1)
	a, b := h.controller(), h.controller()
	h.install(a, firstPortal)
	h.rate(a, firstPortal, 100, 1, store.Second)
	h.send(a, firstPortal, 1, 1)
	h.send(b, firstPortal, 2, 1)
	h.completed(2)
	require.Zero(t, h.hs.Refreshes(firstPortal))
	h.hs.Revoke(firstPortal)
	h.send(a, firstPortal, 3, 20)
	h.send(b, firstPortal, 4, 20)
	h.completed(42)
	require.Equal(t, 1, h.hs.Refreshes(firstPortal), "one for both controllers")
}

func TestTokensOpenWithTheirKeyOnly(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 2)
	h.install(h.controller(), firstPortal, firstPortal+1)
	h.keys = seal.NewRing(seal.Key{1}, seal.Key{})
	must(h.controller().Throttle.Tokens.Access(t.Context(), firstPortal))(t)
	h.keys = seal.NewRing(seal.Key{1})
	_, err := h.controller().Throttle.Tokens.Access(t.Context(), firstPortal)
	require.Error(t, err, "a failed decryption is an error, never a token")
	var text string
	require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT string_agg(t::text || encode(access_token, 'escape') || encode(refresh_token, 'escape'), '') FROM oauth_tokens t`).Scan(&text))
	for _, token := range h.hs.Tokens() {
		require.NotContains(t, text, token)
	}
}

func TestTheDatabaseMayGoAndComeBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 1)
	n := h.controller()
	h.install(n, firstPortal)
	h.rate(n, firstPortal, 50, 1, store.Second)
	h.send(n, firstPortal, 1, 150)
	cut(t, h.db)
	require.Eventually(t, func() bool {
		_, err := n.Throttle.Accept(t.Context(), actionOf(firstPortal, 2, 0))
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	h.completed(151)
	h.settled(151)
	require.Zero(t, n.Snapshot(true).Restarts)
	for _, c := range n.Snapshot(true).Children {
		require.Zero(t, c.Restarts, c.Path)
		for _, g := range c.Children {
			require.Zero(t, g.Restarts, g.Path)
		}
	}
	require.LessOrEqual(t, hubspottest.MostInAnyWindow(ofQueue(h.hs.Completions(), firstPortal, 1), time.Second), 50)
}

func TestEveryActorMayCrashAtAnyTime(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 1)
	n := h.controller()
	h.install(n, firstPortal)
	h.rate(n, firstPortal, 50, 1, store.Second)
	h.send(n, firstPortal, 1, 150)
	for _, id := range []string{"/config_cache", "/oauth_refresh_lock", "/action_batcher", "/portal_queue_sup", ""} {
		require.NoError(t, n.Restart(t.Context(), "takt/throttle"+id))
	}
	require.NoError(t, n.Restart(t.Context(), "takt/jobs"))
	require.Eventually(t, func() bool {
		_, err := n.Throttle.Accept(t.Context(), actionOf(firstPortal, 2, 0))
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	h.completed(151)
	h.settled(151)
	require.LessOrEqual(t, hubspottest.MostInAnyWindow(ofQueue(h.hs.Completions(), firstPortal, 1), time.Second), 50)
}

// The jobs sleep for an hour, so only the restart itself brings the portals back. It is in
// order, so no action is sent twice.
func TestARestartResumesTheQueues(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"takt/throttle", "takt/throttle/portal_queue_sup"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, unlimited(), 1)
			n := h.controller(func(c *throttle.Config) { c.Snooze = time.Hour })
			h.install(n, firstPortal)
			h.rate(n, firstPortal, 5, 1, store.Second)
			h.send(n, firstPortal, 1, 75)
			require.Eventually(t, func() bool { return h.hs.Distinct() >= 5 && sleeping(t, h) == 1 }, time.Minute, 5*time.Millisecond)
			require.NoError(t, n.Restart(t.Context(), path))
			before := h.hs.Distinct()
			require.Less(t, before, 65, "there is work left")
			require.Eventually(t, func() bool { return h.hs.Distinct() > before+5 }, time.Minute, 5*time.Millisecond)
			require.LessOrEqual(t, hubspottest.MostInAnyWindow(h.hs.Completions(), time.Second), 5)
			h.rate(n, firstPortal, 1000, 1, store.Second)
			h.completed(75)
			h.settled(75)
			require.Len(t, h.hs.Completions(), 75)
		})
	}
}

// sleeping counts the queues' jobs that wait.
func sleeping(t *testing.T, h *fixture) (n int) {
	t.Helper()
	require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'throttle' AND state = 'scheduled'`).Scan(&n))
	return n
}

// Throttle does without River for a while. What River has to do is done when it is back.
func TestJobsAreWorkedWhenRiverIsBack(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 1)
	n := h.controller()
	h.install(n, firstPortal)
	h.rate(n, firstPortal, 100, 1, store.Second)
	require.NoError(t, n.Terminate(t.Context(), "takt/jobs"))
	h.send(n, firstPortal, 1, 20)
	h.completed(20)
	h.settled(20)
	live := func() (n int) {
		require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'throttle' AND state <> 'completed'`).Scan(&n))
		return n
	}
	require.Equal(t, 1, live())
	require.NoError(t, n.StartChild(t.Context(), "takt/jobs"))
	require.Eventually(t, func() bool { return live() == 0 }, time.Minute, 20*time.Millisecond)
}

// One portal more than may be looked after at once waits until another has
// nothing to do; its queue's job asks again until then.
func TestAPortalTooManyIsServedWhenAnotherIsIdle(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 3)
	n := h.controller(func(c *throttle.Config) { c.MaxPortals, c.Idle = 2, 50*time.Millisecond })
	busy, late := []int64{firstPortal, firstPortal + 1}, firstPortal+2
	h.install(n, append(busy, late)...)
	for _, p := range busy {
		h.rate(n, p, 10, 1, store.Second)
		h.send(n, p, 1, 25)
	}
	h.rate(n, late, 10, 1, store.Second)
	h.send(n, late, 1, 5)
	h.completed(55)
	all := h.hs.Completions()
	last := func(portal int64) time.Time { list := ofQueue(all, portal, 1); return list[len(list)-1].At }
	first := last(busy[0])
	if other := last(busy[1]); other.Before(first) {
		first = other
	}
	require.True(t, ofQueue(all, late, 1)[0].At.After(first), "a third was looked after while two were busy")
	h.settled(55)
}

// Portals whose budgets are spent for the day have work left, but none to do: they
// keep no other portal out.
func TestPortalsWithoutBudgetMakeRoom(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 5)
	n := h.controller(func(c *throttle.Config) { c.MaxPortals, c.Snooze = 2, time.Hour })
	for i := range 5 {
		p := firstPortal + int64(i)
		h.install(n, p)
		h.rate(n, p, 3, 1, store.Day)
		h.send(n, p, 1, 10)
	}
	h.completed(15)
	require.Eventually(t, func() bool {
		var asleep int
		require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'throttle' AND scheduled_at > now() + interval '1 minute'`).Scan(&asleep))
		return asleep == 5
	}, time.Minute, 20*time.Millisecond, "the jobs wake nobody before the hour is over")
	for i := range 5 { // also those that are not looked after now
		want := 15 + 7*(i+1)
		require.Eventually(t, func() bool { // while the others are still busy there is no room, and its job would wait for the hour
			h.rate(n, firstPortal+int64(i), 10, 1, store.Day)
			return h.hs.Distinct() >= want
		}, 2*time.Minute, 100*time.Millisecond)
		h.completed(want)
	}
	h.settled(50)
}

// Nothing is done for jobs before there can be any.
func TestTheFirstRateStartsRiversClient(t *testing.T) {
	t.Parallel()
	h := newFixture(t, unlimited(), 1)
	n := h.controller()
	queues := func() (n int) {
		require.NoError(t, h.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM river_queue`).Scan(&n))
		return n
	}
	heard := make(chan struct{}, 1)
	defer n.Bus.Subscribe(func(pubsub.Event) {
		select {
		case heard <- struct{}{}:
		default:
		}
	}, pubsub.WorkerChanged)()
	require.Eventually(t, func() bool { // it listens
		must(h.db.Pool.Exec(t.Context(), `SELECT pg_notify('takt', 'worker:changed 1')`))(t)
		return len(heard) > 0
	}, time.Minute, 10*time.Millisecond)
	require.Zero(t, queues())
	h.rate(n, firstPortal, 1, 1, store.Second)
	require.Eventually(t, func() bool { return queues() > 0 }, 30*time.Second, 10*time.Millisecond, "before the next check")
}
