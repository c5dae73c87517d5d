package postgres_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/migrations"
	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
	"takt/store/storetest/needs"
)

// by submits with a key.
func by(key string, priority int) func(*store.Submission) {
	return func(s *store.Submission) { s.Submitter, s.Priority = key, priority }
}

// turns has a worker take n builds, and counts those of each submitter.
func turns(b *fixture, n int) map[string]int {
	w, got := b.worker(slots(n)), map[string]int{}
	for range n {
		got[b.find(jobID(w.poll())).Submitter]++
	}
	return got
}

// flood makes a thousand builds of one key pending, or ten thousand.
func flood(b *fixture) {
	// As 0.1.0 inserts, one by one through the trigger.
	b.exec(`WITH b AS (INSERT INTO builds (id, platform, priority, token_hash, has_certs, log_lines, submitter) SELECT 'flood' || i, 'ios', 0, '\x00', false, 0, 'flood' FROM generate_series(1, $1) i RETURNING id, seq),
		n AS (INSERT INTO build_ids (id, seq) SELECT id, seq FROM b)
		INSERT INTO build_files (build, kind, name, size, sha256, location) SELECT seq, 'source', 's', 1, sha256('x'), 'local' FROM b`, needs.Repeat(1000, 10_000))
}

// twoControllers has a worker at each of two controllers, which take builds in turn: claim
// returns the submitter of the next build.
func twoControllers(b *fixture) (claim func() string) {
	other := *b
	other.Database = storetest.Another(b.t, b.Database)
	other.queue = postgres.NewQueue(other.DB, postgres.QueueConfig{})
	b.build(by("first", 10), requires("pool=a"))
	must(other.queue.Recount(b.t.Context(), 100, nil, nil))(b.t) // by which it knows the class
	n, workers := 0, []*client{b.worker(slots(1000), labelled("pool", "a")), other.worker(slots(1000), labelled("pool", "a"))}
	claim = func() string {
		n++
		id := jobID(workers[n%2].poll())
		require.NotEmpty(b.t, id)
		return b.find(id).Submitter
	}
	require.Equal(b.t, "first", claim())
	return claim
}

func TestAKeyGetsItsShareBesideAFloodAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	flood(b)
	claim := twoControllers(b)
	for range 15 {
		require.Equal(t, "flood", claim())
	}
	small := 0
	for i := range 200 {
		if i%20 == 0 {
			for range 10 + i%40 { // never none
				b.build(by("small", 0))
			}
		}
		if claim() == "small" {
			small++
		}
		require.GreaterOrEqual(t, float64(small), 0.49*float64(i+1)-0.5, "after %d claims", i+1)
	}
	require.GreaterOrEqual(t, small, 98, "49 %%")
}

// In any time in which two keys have builds pending, their shares, each divided by its weight,
// differ by less than one build of each: the bound of start-time fair queueing.
func TestNoKeyStarves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	random := rand.New(rand.NewPCG(29, 1)) // the same in each run
	weights := map[string]float64{"a": 1, "b": 1, "c": 3, "d": 7}
	for key, weight := range weights {
		b.exec(`INSERT INTO access_keys (name, digest, scopes, created_by, weight) VALUES ($1::text, sha256($1::text::bytea), '{submit}', 'admin', $2)`, key, int(weight))
	}
	claim := twoControllers(b)
	waiting, total := map[string]int{}, 0
	type span struct{ now, least, most float64 }
	spans := map[string]*span{} // while both of a pair have builds pending
	for range 120 {
		for range random.IntN(3) {
			key := string(rune('a' + random.IntN(4)))
			for range 1 + random.IntN(6) {
				b.build(by(key, 0), requires([]string{"", "pool=a"}[random.IntN(2)]))
				waiting[key]++
				total++
			}
		}
		for range min(random.IntN(8), total) {
			for f := range weights {
				for g := range weights {
					if f < g && (waiting[f] == 0 || waiting[g] == 0) {
						delete(spans, f+g)
					} else if f < g && spans[f+g] == nil {
						spans[f+g] = &span{}
					}
				}
			}
			key := claim()
			waiting[key]--
			total--
			for pair, s := range spans {
				f, g := pair[:1], pair[1:]
				switch key {
				case f:
					s.now += 1 / weights[f]
				case g:
					s.now -= 1 / weights[g]
				}
				s.least, s.most = min(s.least, s.now), max(s.most, s.now)
				require.LessOrEqual(t, s.most-s.least, 1/weights[f]+1/weights[g]+0.01, pair)
			}
		}
	}
}

func TestKeysTakeTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	flood(b)
	require.Equal(t, map[string]int{"flood": 10}, turns(b, 10))
	for range 20 {
		b.build(by("small", 0))
	}
	require.Equal(t, map[string]int{"flood": 15, "small": 15}, turns(b, 30), "from its first submit on")

	// It returns after a time without builds: neither credit nor penalty.
	require.Equal(t, map[string]int{"flood": 15, "small": 5}, turns(b, 20))
	for range 20 {
		b.build(by("small", 0))
	}
	require.Equal(t, map[string]int{"flood": 10, "small": 10}, turns(b, 20))

	b.exec(`INSERT INTO access_keys (name, digest, scopes, created_by, weight) VALUES ('heavy', '\x01', '{submit}', 'admin', 3)`)
	b.exec(`UPDATE builds SET state = 'cancelled', completed_at = now() WHERE state = 'pending' AND submitter = 'small'`)
	for range 40 {
		b.build(by("heavy", 0))
	}
	got := turns(b, 40)
	require.InDelta(t, 30, got["heavy"], 1, "a weight of 3: %v", got)
}

// A key that submits one build at a time gets no more than its share beside another's backlog,
// although an older build waits for a worker that does not come.
func TestABuildThatNoWorkerTakesBendsNoTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check := func() { require.Empty(t, must(b.queue.CheckClasses(t.Context(), 0))(t)) }
	off := b.worker(labelled("gpu", "1"))
	b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, off.id)
	stuck := b.build(by("gpu", 0), requires("gpu"))
	for range 30 {
		b.build(by("backlog", 0))
	}
	w := b.worker(slots(100))
	check()
	got, waits := map[string]int{}, false
	for range 20 {
		if !waits {
			b.build(by("single", 0))
			waits = true
		}
		by := b.find(jobID(w.poll())).Submitter
		got[by]++
		waits = waits && by != "single"
	}
	require.Equal(t, map[string]int{"backlog": 10, "single": 10}, got)

	b.exec(`UPDATE workers SET status = 'offline'`)
	check()
	b.build(by("late", 0), requires("pool=a"))
	late := map[string]int{}
	again := b.worker(slots(100), labelled("pool", "a"))
	check()
	for range 4 {
		late[b.find(jobID(again.poll())).Submitter]++
	}
	require.Equal(t, 1, late["late"], "no worker gets builds, so the backlog counts: %v", late)
	require.Equal(t, stuck.ID, jobID(b.worker(labelled("gpu", "1")).poll()), "it kept its place")
	check()
	require.Zero(t, b.count(`SELECT count(*) FROM build_classes WHERE NOT served`))
}

// The same, but the older builds wait for a worker that is only slow.
func TestASlowClassBendsNoTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check := func() { require.Empty(t, must(b.queue.CheckClasses(t.Context(), 0))(t)) }
	slow := b.worker(labelled("gpu", "1"))
	for range 3 {
		b.build(by("gpu", 0), requires("gpu"))
	}
	slow.poll() // it has its one build for hours
	for range 30 {
		b.build(by("backlog", 0))
	}
	w := b.worker(slots(100))
	check()
	got, waits := map[string]int{}, false
	for range 20 {
		if !waits {
			b.build(by("single", 0))
			waits = true
		}
		by := b.find(jobID(w.poll())).Submitter
		got[by]++
		waits = waits && by != "single"
	}
	require.Equal(t, map[string]int{"backlog": 10, "single": 10}, got)

	// Whoever can take one class can take the other: they share their turns.
	b.exec(`UPDATE workers SET labels = '{"gpu": "1"}' WHERE id = $1`, w.id)
	check()
	require.Zero(t, b.count(`SELECT count(*) FROM build_classes WHERE apart IS NOT NULL`))
	first := b.count(`SELECT min(position) FROM builds WHERE state = 'pending'`)
	require.Equal(t, first, b.count(`SELECT queue_position('ios', 0, 'new', '{1}')`))
}

// Where no class waits apart, positions are those of the function before.
func TestPositionsAreThoseOfTheFunctionBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before, err := fs.ReadFile(migrations.Files(), "0033_slow_classes.down.sql")
	require.NoError(t, err)
	function, _, _ := strings.Cut(string(before), "ALTER TABLE")
	b.exec(strings.ReplaceAll(function, "queue_position(", "queue_position_before("))
	random := rand.New(rand.NewPCG(34, 1))
	classes := []string{"", "gpu", "pool=a"}
	for range 60 {
		b.build(by(string(rune('a'+random.IntN(3))), random.IntN(2)), requires(classes[random.IntN(3)]), on([]store.Platform{store.IOS, store.Android}[random.IntN(2)]))
		if random.IntN(3) == 0 {
			b.exec(`UPDATE builds SET state = 'cancelled', completed_at = now() WHERE seq = (SELECT min(seq) FROM builds WHERE state = 'pending')`)
		}
		b.exec(`UPDATE build_classes SET served = random() < 0.7, apart = CASE WHEN random() < 0.5 THEN '{}'::int[] END`)
		require.Zero(t, b.count(`SELECT count(*) FROM unnest('{ios,android}'::text[]) p, unnest('{0,1}'::int[]) n, unnest('{a,new}'::text[]) who, build_classes k
			WHERE k.platform = p AND queue_position(p, n, who, ARRAY[k.id]) <> queue_position_before(p, n, who, ARRAY[k.id])`))
	}
}

func TestParallelSubmitsOfOneKeyGetNoMoreTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 50 {
		b.build(by("calm", 0))
	}
	var all sync.WaitGroup
	for range 60 { // each by a Builds of its own, as by many controllers
		all.Go(func() { b.build(by("flood", 0)) })
	}
	all.Wait()
	ties := b.count(`SELECT count(*) FROM (SELECT FROM builds WHERE submitter = 'flood' GROUP BY position HAVING count(*) > 1) d`)
	require.Zero(t, ties, "no two builds of one key share a position")
	require.Equal(t, map[string]int{"calm": 20, "flood": 20}, turns(b, 40))
}

// Builds that are inserted together get the positions that they would get one by one.
func TestPositionsOfBuildsInsertedTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO access_keys (name, digest, scopes, created_by, weight) VALUES ('heavy', '\x01', '{submit}', 'admin', 4)`)
	b.build(by("heavy", 0))
	const unit = 65536
	var first int64
	var together []int64
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT position FROM builds`).Scan(&first))
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT queue_positions('{ios,ios,ios,ios,ios}', '{0,0,0,0,1}', '{light,heavy,light,heavy,heavy}', '{1,1,1,1,1}')`).Scan(&together))
	require.Equal(t, []int64{first, first + unit/4, first + unit, first + unit/2}, together[:4])
	require.Less(t, together[4], first, "a higher priority comes first")
}

func TestTheReleaseBeforeChangesPriorities(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(slots(10))
	first, second := b.build(), b.build()
	b.exec(`UPDATE builds SET priority = 4 WHERE id = '` + second.ID + `'`) // as 0.1.0 does
	got := w.poll()
	require.Equal(t, second.ID, jobID(got), fmt.Sprint(got))
	require.Equal(t, 4, got.Jobs.First().Priority)
	require.Equal(t, first.ID, jobID(w.poll()))
}

// However many submit at once on two controllers, in whatever batches, a key has no more builds
// pending than it may, and what is refused leaves nothing behind.
func TestAKeyHasNoMoreBuildsPendingThanItMay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const most = 20
	keys := postgres.NewKeys(b.DB, &store.KeyRing{})
	require.NoError(t, keys.Create(t.Context(), store.NamedKey{Name: "ci", Digest: [32]byte{1}, Scopes: []store.Scope{store.ScopeSubmit}, MaxPending: most}))
	another := postgres.NewBuilds(b.DB, postgres.BuildsConfig{QueueLimit: 1000})
	var accepted, kept, others atomic.Int64
	fill := func() {
		var all sync.WaitGroup
		for i := range 60 {
			all.Go(func() {
				builds, f := []*postgres.Builds{b.builds, another}[i%2], &settled{}
				_, err := builds.Submit(t.Context(), edited(t, by("ci", i%3), on([]store.Platform{store.IOS, store.Android}[i%4/2])), f)
				if !f.aborted {
					kept.Add(1)
				}
				switch store.CodeOf(err) {
				case "":
					accepted.Add(1)
				case store.KeyQueueFull:
				default:
					t.Error(err)
				}
			})
			all.Go(func() {
				if _, err := another.Submit(t.Context(), edited(t, by("other", 0))); err == nil {
					others.Add(1)
				}
			})
		}
		all.Wait()
	}
	fill()
	require.EqualValues(t, most, accepted.Load())
	require.EqualValues(t, most, kept.Load(), "a refused submission leaves no file")
	require.EqualValues(t, 60, others.Load(), "only the surplus of a batch is refused")
	require.Equal(t, most, b.count(`SELECT count(*) FROM builds WHERE submitter = 'ci'`))

	_, err := b.builds.Submit(t.Context(), edited(t, by("ci", 0)))
	require.ErrorContains(t, err, "Key ci may have 20 pending builds at most: wait until one starts, or cancel some")
	more := most + 5
	n := must(keys.Limit(t.Context(), "ci", store.KeyLimits{MaxPending: &more}))(t)
	require.Equal(t, []int{1, more}, []int{n.Weight, n.MaxPending})
	fill()
	require.EqualValues(t, more, accepted.Load())
	_, err = keys.Limit(t.Context(), "nobody", store.KeyLimits{MaxPending: &more})
	require.Equal(t, store.NotFound, store.CodeOf(err))
}

// edited returns a submission with edits.
func edited(t *testing.T, edits ...func(*store.Submission)) store.Submission {
	t.Helper()
	s := submission(t)
	for _, edit := range edits {
		edit(&s)
	}
	return s
}
