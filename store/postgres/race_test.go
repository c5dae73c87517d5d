package postgres_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest/needs"
)

// Ten workers want one build, in batches of which two run at once, and one of
// them gets it: again and again.
func TestTenWorkersOneBuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := postgres.NewQueue(b.DB, postgres.QueueConfig{}) // a second controller
	var clients []*client
	for range 10 {
		clients = append(clients, b.worker())
	}
	for round := range needs.Repeat(100, 1000) {
		build := b.build()
		rand.Shuffle(len(clients), func(i, j int) { clients[i], clients[j] = clients[j], clients[i] })
		cut := 1 + rand.IntN(len(clients)-1)
		won := make([]*client, 0, 1)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i, part := range [][]*client{clients[:cut], clients[cut:]} {
			queue := []*postgres.Queue{b.queue, other}[i]
			polls := make([]store.Poll, len(part))
			for j, c := range part {
				polls[j] = c.request()
			}
			wg.Go(func() {
				results, err := queue.Assign(t.Context(), polls)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				for j, r := range results {
					part[j].shown = next(r)
					if r.Jobs.First() != nil {
						won = append(won, part[j])
						if r.Jobs.First().BuildID != build.ID {
							t.Errorf("round %d: wrong build", round)
						}
					}
				}
			})
		}
		wg.Wait()
		require.Len(t, won, 1, "round %d", round)
		won[0].finishes(build.ID)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM builds WHERE attempt <> 1 OR state <> 'completed'`))
}

// P5: no build is claimed while one of its class that comes before it is pending, visible and
// not locked, and a worker gets the first of all classes that it can take. Claims run
// concurrently, so each batch is judged by what it left behind: what is pending after all
// batches is newer than everything that was claimed before builds ran out.
func TestClaimsAreFirstInFirstOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range needs.Repeat(20, 100) {
		b.exec(`TRUNCATE builds, build_ids, workers CASCADE`)
		var submits sync.WaitGroup // together, so that they share transactions
		for range 20 + rand.IntN(41) {
			p := oneOf(store.IOS, store.IOS, store.Android, "linux")
			from := by(oneOf("", "", "a", "b"), oneOf(0, 0, 0, -10, 3, 10))
			demand := requires(oneOf("", "", "", "xcode>=16", "!xcode", "pool in (a,b)"))
			s := submission(t)
			for _, edit := range []func(*store.Submission){on(p), demand, from} {
				edit(&s)
			}
			submits.Go(func() {
				if _, err := b.builds.Submit(t.Context(), s); err != nil {
					t.Error(err)
				}
			})
		}
		submits.Wait()
		var wg sync.WaitGroup
		workers := map[string]store.Worker{}
		for range 1 + rand.IntN(4) {
			queue := postgres.NewQueue(b.DB, postgres.QueueConfig{})
			var polls []store.Poll
			for range 1 + rand.IntN(12) {
				kind := takes(oneOf(nil, []store.Platform{store.IOS}, []store.Platform{store.Android}, []store.Platform{"linux", store.Android})...)
				labels := labelled(oneOf(nil, nil, []string{"xcode", "15.4"}, []string{"xcode", "16.2", "pool", "a"}, []string{"pool", "c"})...)
				var said store.Registration
				w := b.worker(kind, labels, func(r *store.Registration) { said = *r })
				workers[w.id] = store.Worker{ID: w.id, Platforms: said.Platforms, Labels: said.Labels}
				polls = append(polls, w.request())
			}
			wg.Go(func() {
				if _, err := queue.Assign(t.Context(), polls); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		builds := listed(b.builds.List(t.Context(), store.BuildFilter{}, store.Page{Limit: 100}))(t)
		var order []string
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT array_agg(id ORDER BY position, seq) FROM builds`).Scan(&order))
		before := func(a, b store.Build) bool { return slices.Index(order, a.ID) < slices.Index(order, b.ID) }
		idle := map[string]store.Worker{}
		maps.Copy(idle, workers)
		for _, claimed := range builds {
			w, ok := workers[claimed.WorkerID]
			if delete(idle, claimed.WorkerID); !ok {
				continue
			}
			class := claimed.Class()
			require.True(t, class.TakenBy(w.Platforms, w.Labels), "%s got %s", w.ID, class.String())
			for _, left := range builds {
				class := left.Class()
				require.False(t, left.State == store.Pending && class.TakenBy(w.Platforms, w.Labels) && before(left, claimed), "%s waits", left.ID)
			}
		}
		for _, w := range idle {
			for _, left := range builds {
				class := left.Class()
				require.False(t, left.State == store.Pending && class.TakenBy(w.Platforms, w.Labels), "%s waits beside an idle worker", left.ID)
			}
		}
	}
}

func oneOf[T any](all ...T) T { return all[rand.IntN(len(all))] }

func TestFirstInFirstOutAcrossMarks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var order []string
	for range 6 {
		order = append(order, b.build().ID)
	}
	first, second := b.worker(), b.worker()
	first.gets(order[0])
	second.gets(order[1])
	urgent := b.build(priority(5))
	third := b.worker()
	third.gets(urgent.ID)
	must(b.workers.UnregisterID(t.Context(), first.id, ""))(t)
	b.worker().gets(order[0])
	b.worker().gets(order[2])
}

// Builds that another controller puts back are below this one's mark: when
// nothing else waits they are found at once.
func TestBuildsThatAnotherControllerReturnsAreFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lost, next := b.build(), b.build()
	w := b.worker()
	w.gets(lost.ID)
	b.worker().gets(next.ID)
	b.exec(`UPDATE builds SET state = 'pending', worker_id = NULL, started_at = NULL WHERE id = $1`, lost.ID)
	b.exec(`UPDATE workers SET held = 0, status = 'idle' WHERE id = $1`, w.id)
	b.worker().gets(lost.ID)
}

// What another transaction has locked is passed over, not waited for.
func TestABatchWaitsForNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, kind := range [][]store.Platform{nil, {store.IOS}, {store.Android}} {
		platform := store.IOS
		if len(kind) > 0 {
			platform = kind[0]
		}
		first, second := b.build(on(platform)), b.build(on(platform))
		release := b.locks(`SELECT 1 FROM builds WHERE id = $1 FOR UPDATE`, first.ID)
		b.worker(takes(kind...)).gets(second.ID)
		release()
		b.worker(takes(kind...)).gets(first.ID)
	}
}

// Two controllers serve one worker at once: its slots are counted under its lock.
func TestTwoControllersKeepToTheSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.build()
	b.build()
	w := b.worker()
	b.exec(`CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER pause BEFORE UPDATE ON builds FOR EACH ROW EXECUTE FUNCTION pause()`)
	release := b.locks(`SELECT pg_advisory_xact_lock(1)`)
	served := make(chan error, 1)
	go func() { _, err := b.queue.Assign(t.Context(), []store.Poll{w.request()}); served <- err }()
	b.waits(1) // the first claims a build
	second := postgres.NewQueue(b.DB, postgres.QueueConfig{})
	results := must(second.Assign(t.Context(), []store.Poll{w.request()}))(t)
	require.Equal(t, store.PollLocked, results[0].Outcome)
	release()
	require.NoError(t, <-served)
	results = must(second.Assign(t.Context(), []store.Poll{w.request()}))(t)
	require.True(t, results[0].Redelivered)
	require.Equal(t, 1, b.count(`SELECT count(*) FROM builds WHERE worker_id = $1`, w.id))
}

// Everything that changes builds and workers runs at once; invariants hold and
// nothing deadlocks.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	requireDrawn := b.requireDrawn()
	const actors, steps = 6, 120
	var clients [3][]*client // one set per controller; the sets share workers
	for range 12 {
		w := b.worker(slots(2))
		for i := range clients {
			clients[i] = append(clients[i], &client{fixture: b, id: w.id, number: w.number, shown: w.shown})
		}
	}
	known := make(chan string, 4096)
	var unexpected atomic.Value
	allow := func(what string, err error, codes ...store.Code) {
		for _, c := range append(codes, "") {
			if store.CodeOf(err) == c {
				return
			}
		}
		unexpected.CompareAndSwap(nil, fmt.Sprintf("%s: %v", what, err))
	}
	anyBuild := func() string {
		select {
		case id := <-known:
			select {
			case known <- id:
			default:
			}
			return id
		default:
			return "none"
		}
	}
	ctx := t.Context()
	var wg sync.WaitGroup
	for i := range actors {
		wg.Go(func() {
			for range steps {
				w := clients[0][rand.IntN(12)]
				id := anyBuild()
				switch i {
				case 0:
					known <- b.build(priority(rand.IntN(3))).ID
				case 1, 2:
					var polls []store.Poll
					for _, c := range clients[i] {
						polls = append(polls, store.Poll{WorkerID: c.id})
					}
					rand.Shuffle(len(polls), func(i, j int) { polls[i], polls[j] = polls[j], polls[i] })
					_, err := b.queue.Assign(ctx, polls)
					allow("serve", err)
				case 3:
					allow("touch", b.touch(ctx, store.Heartbeat{BuildID: id, WorkerID: w.id, Logs: []store.LogLine{{Level: store.Info, Message: "x"}}}),
						store.NotAssigned, store.NotFound)
					_, err := b.builds.Finish(ctx, success(id, w.id))
					allow("finish", err, store.NotAssigned, store.NotFound, store.Conflict)
				case 4:
					allow("cancel", b.builds.Cancel(ctx, id, "", ""), store.InvalidState, store.NotFound)
					_, err := b.workers.UnregisterID(ctx, w.id, "")
					allow("unregister", err)
				case 5:
					_, err := b.queue.Sweep(ctx, store.Sweep{
						Patience: time.Minute,
						Timeouts: store.Timeouts{BuildTimeout: time.Millisecond, WorkerTimeout: time.Millisecond},
						Rule:     store.LostRule{MaxAttempts: 3},
					})
					allow("sweep", err)
				}
			}
		})
	}
	wg.Wait()
	require.Nil(t, unexpected.Load())
	requireDrawn()
}

func TestOneIDRegisteredAtOnceIsOneWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var again atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			reg, err := b.workers.Register(t.Context(), store.Registration{ID: "the-same", Name: "n"})
			if err != nil {
				t.Error(err)
			}
			if reg.Again {
				again.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 7, again.Load())
}
