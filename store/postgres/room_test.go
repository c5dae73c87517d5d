package postgres_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// twoQueues are the builds of two controllers with a queue limit. What they know of the workers is
// forgotten before each submit, as it is after two seconds.
func twoQueues(b *fixture, limit int) (submit func(edit ...func(*store.Submission)) error) {
	dbs := []*postgres.DB{b.DB, storetest.Another(b.t, b.Database).DB}
	n := 0
	return func(edit ...func(*store.Submission)) error {
		n++
		db := dbs[n%2]
		postgres.ForgetWorkers(db)
		f := &settled{}
		_, err := postgres.NewBuilds(db, postgres.BuildsConfig{QueueLimit: limit}).Submit(b.t.Context(), edited(b.t, edit...), f)
		require.Equal(b.t, err != nil, f.aborted, "a refused submit leaves no file")
		if err != nil {
			require.Equal(b.t, store.QueueFull, store.CodeOf(err), err)
		}
		return err
	}
}

// leftBehind is what a refused submit could leave.
const leftBehind = `SELECT (SELECT count(*) FROM builds) + (SELECT count(*) FROM build_files) + (SELECT count(*) FROM build_classes) + (SELECT count(*) FROM build_logs)`

func TestBuildsThatNoWorkerTakesHaveALimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	submit := twoQueues(b, 20)
	stuck, gpu := requires("xcode=77"), requires("gpu")
	for range 4 {
		require.NoError(t, submit(stuck), "no worker is known: the first may still come")
	}
	w := b.worker(slots(30))
	before := b.count(leftBehind)
	const own = "No known worker can take this build. The limit of such builds is 2, and 4 wait. The limit of all others is 20, and 0 wait."
	require.ErrorContains(t, submit(stuck), "Build queue full, try again later: "+own)
	require.ErrorContains(t, submit(gpu), own, "of another class")
	require.Equal(t, before, b.count(leftBehind))
	for range 19 { // and two of the four
		require.NoError(t, submit())
	}
	const full = "The queue's limit is 20, and 23 builds wait. No known worker can take 4 of them; up to 2 such builds don't count."
	require.ErrorContains(t, submit(), full)
	require.ErrorContains(t, submit(stuck), full)
	r := must(b.queue.Recount(t.Context(), 100, nil, nil))(t)
	require.Equal(t, store.QueueRoom{Limit: 20, Pending: 23, Unmatched: 4}, r.Room(20))

	must(b.workers.UnregisterID(t.Context(), w.id, ""))(t)
	require.ErrorContains(t, submit(), "The queue's limit is 20, and 23 builds wait.", "without workers all count")
	able := b.worker(slots(30), labelled("xcode", "77"))
	for range 4 {
		able.poll()
	}
	require.NoError(t, submit(stuck), "it can take them")
	require.NoError(t, submit(gpu), "and these have room again")
	require.NoError(t, submit())
	require.ErrorContains(t, submit(), "The queue's limit is 20, and 22 builds wait.")
}

// Also far from the limit, where no other submit counts.
func TestBuildsThatNoWorkerTakesAreAlwaysCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.worker(labelled("gpu", "1"))
	builds := postgres.NewBuilds(b.DB, postgres.BuildsConfig{QueueLimit: 200})
	accepted := func(need string) bool {
		_, err := builds.Submit(t.Context(), edited(t, requires(need)))
		return store.CodeOf(err) != store.QueueFull
	}
	for range 20 {
		require.True(t, accepted("gpu"))
		require.True(t, accepted("xcode"))
	}
	require.False(t, accepted("xcode"))
	require.False(t, accepted("xcode=77"))
	require.True(t, accepted("gpu"))
}

// A build that waits for its retry counts as one of its own class.
func TestBuildsThatWaitForTheirRetryCountByTheirOwnClass(t *testing.T) {
	t.Parallel()
	b := setup(t)
	submit := twoQueues(b, 10)
	_, w := b.waiting(requires("gpu"))
	must(b.workers.UnregisterID(t.Context(), w.id, ""))(t)
	b.worker()
	require.ErrorContains(t, submit(requires("xcode")), "The limit of such builds is 1, and 1 wait.")
	require.NoError(t, submit())
	r := must(b.queue.Recount(t.Context(), 100, nil, nil))(t)
	require.Equal(t, store.QueueRoom{Limit: 10, Pending: 2, Unmatched: 1}, r.Room(10))
}

// As the model in package store, in the database.
func TestTheQueueIsBoundedWhoeverComesAndGoes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const limit, share = 15, 1
	submit := twoQueues(b, limit)
	random := rand.New(rand.NewPCG(46, 7)) // the same in each run
	needs, workers, ids := []string{"", "gpu", "xcode>=16", "pool=a"}, map[string]string{}, []string{}
	const pending = `SELECT count(*) FROM builds WHERE state = 'pending'`
	for range 250 {
		need := needs[random.IntN(4)]
		switch step := random.IntN(10); {
		case step == 0 && workers[need] == "":
			labels := map[string][]string{"": nil, "gpu": {"gpu", "1"}, "xcode>=16": {"xcode", "16.1"}, "pool=a": {"pool", "a"}}[need]
			workers[need] = b.worker(labelled(labels...)).id
		case step == 0:
			must(b.workers.UnregisterID(t.Context(), workers[need], ""))(t)
			delete(workers, need)
		case step == 1 && len(ids) > 0:
			b.exec(`UPDATE builds SET state = 'cancelled', completed_at = now() WHERE seq = (SELECT min(seq) FROM builds WHERE state = 'pending')`)
		default:
			all, unmatched := b.count(pending), 0
			for _, n := range needs[1:] {
				if len(workers) > 0 && workers[n] == "" {
					unmatched += b.count(pending+` AND class = (SELECT id FROM build_classes WHERE platform = 'android' AND require = $1)`, n)
				}
			}
			mine := need != "" && len(workers) > 0 && workers[need] == ""
			room := store.QueueRoom{Limit: limit, Pending: all, Unmatched: unmatched}
			want := room.Admit(mine)
			s := edited(t)
			err := submit(requires(need), func(to *store.Submission) { s = *to })
			require.Equal(t, want == nil, err == nil, "%v: %v, %v", room, want, err)
			if err == nil {
				ids = append(ids, s.ID)
				require.LessOrEqual(t, all+1, limit+1+share)
			}
		}
	}
	require.NotEmpty(t, ids)
}

// However many submit at once to two controllers.
func TestLimitsOfTheQueueAreExactAtTwoControllers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const limit, share = 40, 4
	b.worker()
	dbs := []*postgres.DB{b.DB, storetest.Another(t, b.Database).DB}
	var plain, stuck atomic.Int64
	fill := func(each int) {
		var all sync.WaitGroup
		for i := range 16 {
			builds := postgres.NewBuilds(dbs[i/8], postgres.BuildsConfig{QueueLimit: limit})
			all.Go(func() {
				for range each {
					accepted, edit := &plain, func(*store.Submission) {}
					if i%2 == 0 {
						accepted, edit = &stuck, requires([]string{"gpu", "xcode=77"}[i/2%2])
					}
					switch _, err := builds.Submit(t.Context(), edited(t, edit)); store.CodeOf(err) {
					case "":
						accepted.Add(1)
					case store.QueueFull:
					default:
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	fill(2)
	require.Equal(t, []int64{16, share}, []int64{plain.Load(), stuck.Load()})
	fill(8)
	require.Equal(t, []int64{limit + 1, share}, []int64{plain.Load(), stuck.Load()})
	require.Equal(t, limit+1+share, b.count(`SELECT count(*) FROM builds`))
}

// A queue that fills up and drains again and again is told of once in five minutes.
func TestAFullQueueIsToldOfOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, postgres.NewNotices(b.DB).Create(t.Context(), store.Subscription{
		ID: "s", URL: "https://x", NoticeFilter: store.NoticeFilter{Events: []string{"queue.full"}, Labels: map[string]string{}}, Secrets: []byte("s"),
	}))
	told := func(reason string) int {
		return b.count(`SELECT count(*) FROM river_job WHERE kind = 'notice' AND args->'body'->>'type' = 'queue.full' AND args->'body'->'data'->>'reason' = $1`, reason)
	}
	full, stuck := store.QueueRoom{Limit: 10, Pending: 11}, store.QueueRoom{Limit: 10, Pending: 1, Unmatched: 1}
	other := postgres.NewQueue(storetest.Another(t, b.Database).DB, postgres.QueueConfig{})
	note := func(room store.QueueRoom) {
		var all sync.WaitGroup
		for _, q := range []*postgres.Queue{b.queue, other} {
			all.Go(func() { require.NoError(t, q.NoteFull(t.Context(), room)) })
		}
		all.Wait()
	}
	note(store.QueueRoom{Limit: 10})
	require.Zero(t, told("full"), "it has room")
	note(full)
	note(full)
	require.Equal(t, []int{1, 0}, []int{told("full"), told("unmatched")})
	note(stuck)
	require.Equal(t, []int{1, 1}, []int{told("full"), told("unmatched")})
	b.exec(`UPDATE settings SET updated_at = now() - interval '4 min' WHERE key LIKE 'queue%'`)
	note(full)
	require.Equal(t, 1, told("full"))
	b.exec(`UPDATE settings SET updated_at = now() - interval '6 min' WHERE key LIKE 'queue%'`)
	note(full)
	require.Equal(t, []int{2, 1}, []int{told("full"), told("unmatched")})
	b.exec(`UPDATE settings SET updated_at = now() - interval '6 min' WHERE key LIKE 'queue%'`)
	require.NoError(t, postgres.NewDashboard(b.DB).Acknowledge(t.Context(), "queue", []string{""}, "ana", "more workers tomorrow", time.Hour))
	note(full)
	require.Equal(t, 2, told("full"), "somebody knows")
}
