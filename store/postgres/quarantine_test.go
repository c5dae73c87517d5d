package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// quarantining is setup with a rule, and with another controller on the same database.
func quarantining(t *testing.T, faults, attempts int) (b *fixture, other *postgres.Builds) {
	t.Helper()
	b = setup(t)
	cfg := postgres.BuildsConfig{Quarantine: store.QuarantineRule{Faults: faults, Attempts: attempts}}
	b.builds = postgres.NewBuilds(b.DB, cfg)
	second := postgres.New()
	second.Use(b.Pool)
	return b, postgres.NewBuilds(second, cfg)
}

func fault(build, worker string, kind store.Fault) store.Result {
	return store.Result{BuildID: build, WorkerID: worker, Fault: kind, ErrorMessage: "no space\nleft"}
}

// givesBack reports a fault of the worker's own.
func (c *client) givesBack(build string) store.GiveBack {
	c.t.Helper()
	back := must(c.builds.GiveBack(c.t.Context(), fault(build, c.id, store.FaultDisk)))(c.t)
	require.False(c.t, back.Repeat)
	return back
}

// fails reports that the build itself failed.
func (c *client) fails(build string) {
	c.t.Helper()
	must(c.builds.Finish(c.t.Context(), failure(build, c.id)))(c.t)
}

// rests returns for how long the worker gets no builds, to the second.
func (c *client) rests() time.Duration {
	c.t.Helper()
	var seconds float64
	require.NoError(c.t, c.Pool.QueryRow(c.t.Context(), `SELECT extract(epoch FROM rests_until - now())::float8 FROM workers WHERE id = $1`, c.id).Scan(&seconds))
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Second)
}

// rested lets the time pass for which the worker gets no builds.
func (c *client) rested() {
	c.t.Helper()
	c.exec(`UPDATE workers SET rests_until = now() WHERE id = $1`, c.id)
}

func (c *client) quarantine() string {
	c.t.Helper()
	shown := must(c.workers.Show(c.t.Context(), c.id))(c.t)
	return shown.Quarantine
}

func TestABuildThatItsWorkerCantRunGoesToAnother(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 3, 10)
	build, next := b.build(), b.build()
	w, other := b.worker(), b.worker()
	w.gets(build.ID)
	require.Equal(t, store.GiveBack{State: store.Pending, Status: store.Idle}, w.givesBack(build.ID))
	got := b.find(build.ID)
	require.Equal(t, store.Pending, got.State)
	require.Empty(t, got.WorkerID)
	require.Equal(t, "Worker "+w.id+" gave this build back (disk: no space\nleft), build is pending again", b.logs(build.ID)[2])
	require.Equal(t, []int{0, 0}, []int{w.find().Held, w.find().Failed})

	require.True(t, must(b.builds.GiveBack(t.Context(), fault(build.ID, w.id, store.FaultDisk)))(t).Repeat, "its reply was lost")
	require.Len(t, b.logs(build.ID), 3)

	require.Equal(t, 30*time.Second, w.rests())
	w.gets("")
	other.gets(build.ID)
	other.finishes(build.ID)
	w.rested()
	w.gets(next.ID)
	_, err := b.builds.GiveBack(t.Context(), fault(build.ID, w.id, store.FaultDisk))
	require.Equal(t, store.StaleAttempt, store.CodeOf(func() error {
		r := fault(build.ID, w.id, store.FaultDisk)
		r.Attempt = 1
		_, err := b.builds.GiveBack(t.Context(), r)
		return err
	}()))
	require.Equal(t, store.Conflict, store.CodeOf(err))
}

func TestAnOnlyWorkerGetsTheBuildAgainAfterItsRest(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 3, 10)
	build := b.build()
	w := b.worker()
	w.gets(build.ID)
	w.givesBack(build.ID)
	r := w.gets("")
	require.True(t, r.Session.Drained)
	w.rested()
	recount := must(b.queue.Recount(t.Context(), 10, []store.WorkerSession{r.Session}, nil))(t)
	require.Len(t, recount.Changed, 1)
	require.False(t, recount.Changed[0].Drained)
	recount = must(b.queue.Recount(t.Context(), 10, recount.Changed, nil))(t)
	require.Empty(t, recount.Changed)
	w.gets(build.ID)
	w.finishes(build.ID)
}

// The end of a rest changes no row.
func TestARecountFindsWorkersWhoseRestHasEnded(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 3, 10)
	w := b.worker()
	b.exec(`UPDATE workers SET rests_until = clock_timestamp() + interval '100 ms'`)
	r := w.gets("")
	require.True(t, r.Session.Drained)
	require.Eventually(t, func() bool {
		recount := must(b.queue.Recount(t.Context(), 10, []store.WorkerSession{r.Session}, nil))(t)
		return len(recount.Changed) == 1 && !recount.Changed[0].Drained
	}, 10*time.Second, 10*time.Millisecond)
}

func TestABuildIsGivenBackALimitedNumberOfTimes(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 0, 0)
	build := b.build()
	w := b.worker()
	for range store.MaxGiveBacks {
		w.rested()
		w.gets(build.ID)
		require.Equal(t, store.Pending, w.givesBack(build.ID).State)
	}
	w.rested()
	w.gets(build.ID)
	require.Equal(t, store.Failed, w.givesBack(build.ID).State)
	got := b.find(build.ID)
	require.Equal(t, store.Failed, got.State)
	require.Equal(t, "No worker could run it, 6 attempts failed. The last one (disk): no space\nleft", got.ErrorMessage)
	require.Equal(t, 1, w.find().Failed)
	require.Empty(t, w.quarantine(), "the rule is off")
	require.Equal(t, 30*time.Second, w.rests())
	require.True(t, must(b.builds.GiveBack(t.Context(), fault(build.ID, w.id, store.FaultDisk)))(t).Repeat)
}

func TestFailuresOfBuildsQuarantineNoWorker(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 1, 10)
	w := b.worker()
	for range 12 {
		build := b.build()
		w.gets(build.ID)
		w.fails(build.ID)
	}
	require.Empty(t, w.quarantine())
	build := b.build()
	w.gets(build.ID)
}

// A worker can't tell that it is the cause. That the same build completes elsewhere shows it.
func TestBuildsThatCompleteElsewhereQuarantineTheWorkerOnWhichTheyFailed(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 3, 5)
	type call struct {
		worker, why string
		status      store.WorkerStatus
	}
	var calls []call
	builds := postgres.NewBuilds(b.DB, postgres.BuildsConfig{
		Quarantine:  store.QuarantineRule{Faults: 3, Attempts: 5},
		Quarantined: func(worker, why string, status store.WorkerStatus) { calls = append(calls, call{worker, why, status}) },
	})
	w, healthy := b.worker(slots(2)), b.worker()
	fails := func(c *client) string {
		t.Helper()
		build := b.build()
		c.gets(build.ID)
		c.fails(build.ID)
		return build.ID
	}
	completes := func(c *client, failed string) string {
		t.Helper()
		again := b.build(func(s *store.Submission) { s.RetryOf = failed })
		c.gets(again.ID)
		require.False(t, must(builds.Finish(t.Context(), success(again.ID, c.id), staged(func() error { return nil })))(t).Repeat)
		return again.ID
	}
	completes(w, fails(w))             // on the same worker
	completes(healthy, fails(healthy)) // as above
	again := b.build(func(s *store.Submission) { s.RetryOf = fails(w) })
	healthy.gets(again.ID)
	healthy.fails(again.ID) // on both
	completes(healthy, again.ID)
	completes(healthy, fails(w))
	completes(healthy, fails(w))
	require.Empty(t, w.quarantine())
	require.Empty(t, calls)
	last, held := fails(w), b.build()
	w.gets(held.ID)
	b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, w.id)
	conn := must(pgx.ConnectConfig(t.Context(), b.Config))(t)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	must(conn.Exec(t.Context(), `LISTEN takt`))(t)
	completes(healthy, last)
	told, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for want := fmt.Sprint("worker:changed ", w.number); ; {
		if n := must(conn.WaitForNotification(told))(t); n.Payload == want {
			break
		}
	}
	why := "3 of the last 5 attempts ended by this worker's own fault or failed here and completed on another worker. The last one (completed elsewhere): build " + last
	require.Equal(t, why, w.quarantine())
	require.Equal(t, []call{{w.id, why, store.Offline}}, calls)
	require.Equal(t, store.Offline, w.find().Status, "it sent nothing")
	w.finishes(held.ID)
	require.Empty(t, healthy.quarantine())
	require.Equal(t, time.Minute, w.rests())
	build := b.build()
	w.gets("")
	w.rested()
	w.gets(build.ID) // the trial
	w.finishes(build.ID)
	require.Empty(t, w.quarantine())
}

// The attempts are recorded in the row, whichever controller is told.
func TestFaultsAmongTheLastAttemptsQuarantineAWorker(t *testing.T) {
	t.Parallel()
	b, other := quarantining(t, 3, 5)
	w, healthy := b.worker(), b.worker()
	attempt := func(own bool) (back store.GiveBack) {
		t.Helper()
		build := b.build()
		w.rested()
		w.gets(build.ID)
		if !own {
			w.finishes(build.ID)
			return back
		}
		back = must(other.GiveBack(t.Context(), fault(build.ID, w.id, store.FaultEngine)))(t)
		healthy.gets(build.ID)
		healthy.finishes(build.ID)
		return back
	}
	for _, own := range []bool{true, true, false, false, false, true, true, false} {
		require.Empty(t, attempt(own).Quarantined, "never three of five")
	}
	why := "3 of the last 5 attempts ended by this worker's own fault. The last one (engine): no space left"
	require.Equal(t, store.GiveBack{State: store.Pending, Quarantined: why, Status: store.Idle}, attempt(true))
	require.Equal(t, why, w.quarantine())
	require.Equal(t, time.Minute, w.rests())
	require.Empty(t, healthy.quarantine())

	build := b.build()
	w.gets("")
	must(b.workers.Register(t.Context(), store.Registration{ID: w.id, Name: "w", Slots: 1}))(t)
	require.Equal(t, why, w.quarantine(), "registering ends no quarantine")
	w.gets("", w.byID())
	require.Equal(t, store.FleetSummary{Class: iosClass, Known: 2, Online: 2, Able: 1, Quarantined: 1, Slots: 1, Free: 1, Pending: 1}, summaries(t, b)[1])
	rows, _, states, err := postgres.NewDashboard(b.DB).Fleet(t.Context(), store.WorkerFilter{State: store.WorkerQuarantined, Sort: "state"}, store.Page{})
	require.NoError(t, err)
	require.Equal(t, map[string]int{"idle": 1, "quarantined": 1}, states)
	require.Len(t, rows, 1)
	require.WithinDuration(t, time.Now().Add(time.Minute), rows[0].RestsUntil, 20*time.Second)
	healthy.gets(build.ID)
}

func TestAQuarantineEndsWithATrialBuild(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*client, string){"that completes": (*client).finishes, "that fails by itself": (*client).fails} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _ := quarantining(t, 1, 10)
			w := b.worker(slots(4))
			first, second := b.build(), b.build()
			w.gets(first.ID)
			require.NotEmpty(t, w.givesBack(first.ID).Quarantined)
			back := time.Minute
			for _, want := range []time.Duration{2, 4, 8, 16, 30, 30} {
				w.rested()
				w.gets(first.ID)
				w.gets("") // one build at a time
				b.exec(`UPDATE builds SET given_back = 0`)
				require.NotEmpty(t, w.givesBack(first.ID).Quarantined)
				back = w.rests()
				require.Equal(t, want*time.Minute, back)
			}
			require.True(t, strings.HasPrefix(w.quarantine(), "7 of the last 7 attempts ended by"), w.quarantine())
			w.rested()
			w.gets(first.ID)
			w.gets("")
			ends(w, first.ID)
			require.Empty(t, w.quarantine())
			w.gets(second.ID)
			third := b.build()
			w.gets(third.ID) // all slots
			w.givesBack(third.ID)
			require.Equal(t, time.Minute, w.rests(), "the back-off begins anew")
		})
	}
}

func TestABuildFromBeforeAQuarantineDoesNotEndIt(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 1, 10)
	w := b.worker(slots(3))
	one, two, three := b.build(), b.build(), b.build()
	w.gets(one.ID)
	w.gets(two.ID)
	w.gets(three.ID)
	w.givesBack(one.ID)
	why := w.quarantine()
	w.finishes(two.ID)
	require.Equal(t, why, w.quarantine())
	require.Empty(t, w.givesBack(three.ID).Quarantined, "the same cause, so the back-off stays")
	require.Equal(t, time.Minute, w.rests())
}

func TestAnOperatorEndsAQuarantine(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 2, 10)
	w := b.worker()
	build := b.build()
	for range 2 {
		w.rested()
		w.gets(build.ID)
		w.givesBack(build.ID)
	}
	require.NotEmpty(t, w.quarantine())
	must(b.workers.Drain(t.Context(), w.id, true))(t)
	require.NotEmpty(t, w.quarantine(), "draining is something else")
	must(b.workers.Drain(t.Context(), w.id, false))(t)
	require.Empty(t, w.quarantine())
	w.gets(build.ID)
	w.givesBack(build.ID)
	require.Empty(t, w.quarantine(), "what was before counts no more")
	require.Equal(t, 30*time.Second, w.rests())
}

func TestTwoControllersGiveAWorkerOneTrialBuild(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 1, 10)
	w := b.worker(slots(8))
	build := b.build()
	w.gets(build.ID)
	w.givesBack(build.ID)
	w.rested()
	for range 8 {
		b.build()
	}
	second := postgres.New()
	second.Use(b.Pool)
	queues := []*postgres.Queue{b.queue, postgres.NewQueue(second, postgres.QueueConfig{})}
	handed := make(chan int)
	for _, q := range queues {
		go func() {
			n := 0
			for range 20 {
				r, err := q.Assign(t.Context(), []store.Poll{{WorkerID: w.id, Reconcile: true, Active: []string{build.ID}}})
				if err == nil && r[0].Jobs.First() != nil && r[0].Jobs.First().BuildID != build.ID {
					n++
				}
			}
			handed <- n
		}()
	}
	<-handed
	<-handed
	require.Equal(t, 1, w.find().Held)
}

func TestAFaultOfAWorkerThatDoesNotHoldTheBuildIsRefused(t *testing.T) {
	t.Parallel()
	b, _ := quarantining(t, 1, 10)
	build := b.build()
	w, other := b.worker(), b.worker()
	w.gets(build.ID)
	require.Equal(t, store.NotAssigned, codeOf(b.builds.GiveBack(t.Context(), fault(build.ID, other.id, store.FaultEngine))))
	require.Equal(t, store.NotFound, codeOf(b.builds.GiveBack(t.Context(), fault("nobody", w.id, store.FaultEngine))))
	require.Empty(t, other.quarantine())
	require.Equal(t, store.Assigned, b.find(build.ID).State)
}

// Of builds that are handed out together, a worker gets none that was lost or failed on it
// before if another worker can have it.
func TestABuildGoesToAnotherWorkerThanBefore(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(b *fixture, w *client, build string) (next string){
		"lost": func(b *fixture, w *client, build string) string {
			must(b.builds.Requeue(t.Context(), build))(t)
			return build
		},
		"failed": func(b *fixture, w *client, build string) string {
			w.fails(build)
			again := b.build(func(s *store.Submission) { s.RetryOf = build })
			require.Equal(t, w.id, again.LastWorkerID)
			return again.ID
		},
	} {
		inDatabase(t, name, func(b *fixture) {
			first, second := b.worker(slots(2)), b.worker(slots(2))
			build := b.build().ID
			first.gets(build)
			build = ends(b, first, build)
			other := b.build().ID
			got := must(b.queue.Assign(b.t.Context(), []store.Poll{first.request(first.byID()), second.request()}))(b.t)
			require.Equal(b.t, []string{other, build}, []string{jobID(got[0]), jobID(got[1])})
			require.Equal(b.t, second.id, b.find(build).WorkerID)
			require.Equal(b.t, first.id, b.find(other).WorkerID)

			b.exec(`UPDATE builds SET state = 'pending', worker_id = NULL, last_worker_id = worker_id WHERE id = $1`, build)
			b.exec(`UPDATE workers SET held = 0 WHERE id = $1`, second.id)
			second.gets(build, second.byID()) // no other worker polls
		})
	}
}
