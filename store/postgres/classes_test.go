package postgres_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// insert010 is how takt 0.1.0 adds a build.
const insert010 = `WITH b AS (INSERT INTO builds (id, platform, priority, token_hash, has_certs, log_lines) VALUES ($1, $2, 0, '\x00', false, 0) RETURNING id, seq)
INSERT INTO build_ids (id, seq) SELECT id, seq FROM b`

func TestBuildsGoToWorkersWhoseLabelsSatisfyThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	xcode, linux, plain := b.build(requires("xcode>=16,!gpu")), b.build(on("linux")), b.build()
	got := b.find(xcode.ID)
	require.Equal(t, "!gpu,xcode>=16", got.Require.String())
	require.Equal(t, xcode.ClassID, got.ClassID)
	require.Equal(t, xcode.ClassID, b.build(requires("!gpu, xcode >= 16"), priority(-1)).ClassID, "one class")
	b.worker(labelled("xcode", "15.4")).gets(plain.ID)
	b.worker(labelled("xcode", "16.0", "gpu", "")).gets("")
	b.worker().gets("")
	b.worker(takes(store.Android), labelled("xcode", "16")).gets("")
	mac := b.worker(labelled("xcode", "16.2"))
	require.Equal(t, store.Labels{"xcode": "16.2"}, mac.find().Labels)
	mac.gets(xcode.ID)
	b.worker(takes("linux", store.IOS)).gets(linux.ID)
	mac.finishes(xcode.ID)

	storetest.Worker(t, b.DB, func(r *store.Registration) { r.ID = mac.id })
	require.Empty(t, mac.find().Labels, "it has registered without labels")
}

func TestAWorkerTakesTheFirstOfAllItsClasses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var order []string
	for i := range 12 {
		order = append(order, b.build(requires([]string{"", "xcode", "pool=a"}[i%3]), on([]store.Platform{store.IOS, store.Android}[i%2])).ID)
	}
	for _, id := range order {
		b.worker(labelled("xcode", "16", "pool", "a")).gets(id)
	}
}

// Polls of workers that take more different sets of classes than one transaction claims for
// are served too.
func TestManySetsOfClassesInOneBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want, got := map[string]string{}, map[string]string{}
	var polls []store.Poll
	for i := range 40 {
		pool := fmt.Sprint("p", i)
		build, w := b.build(requires("pool="+pool)), b.worker(labelled("pool", pool))
		want[w.id] = build.ID
		polls = append(polls, w.request())
	}
	for i, r := range b.assign(polls...) {
		got[polls[i].WorkerID] = jobID(r)
	}
	require.Equal(t, want, got)
}

func TestBuildsOfTheReleaseBeforeHaveAClass(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "lines")
	ours := b.build(requires("gpu"))
	b.exec(insert010, "theirs", "android")
	b.exec(insert010, "last", "ios")
	require.EqualValues(t, store.AndroidClass, b.find("theirs").ClassID)
	require.Equal(t, []store.ClassCount{{Class: iosClass, N: 1}, {Class: androidClass, N: 1}, {Class: ours.Class(), N: 1}},
		must(b.queue.Recount(t.Context(), 10, nil, nil))(t).Pending)
	b.worker().gets("theirs")
	b.worker(labelled("gpu", "")).gets(ours.ID)
	b.worker(takes(store.IOS)).gets("last")
}

// A controller finds classes that another one has added to by itself, and at once if it is
// told of them.
func TestControllersFindEachOthersClasses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	there := storetest.Another(t, b.Database)
	queue := postgres.NewQueue(there.DB, postgres.QueueConfig{})
	build := b.build(requires("gpu"))
	w := b.worker(labelled("gpu", "a100"))
	poll := func() string { return jobID(must(queue.Assign(t.Context(), []store.Poll{w.request()}))(t)[0]) }
	require.Empty(t, poll(), "not heard of")
	require.Equal(t, []store.ClassCount{{Class: build.Class(), N: 1}}, must(queue.Recount(t.Context(), 10, nil, []int32{build.ClassID}))(t).Pending)
	require.Equal(t, build.ID, poll())

	next := must(postgres.NewBuilds(there.DB, postgres.BuildsConfig{}).Submit(t.Context(), store.Submission{
		ID: "next", Platform: store.IOS, Require: store.StoredRequire("gpu"), Source: storetest.File("builds/next/source.zip", "s"),
	}))(t)
	require.Equal(t, build.ClassID, next.ClassID)
}

func TestClassesWithPendingBuildsAreLimited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.except = append(b.except, "build_source", "lines")
	b.exec(`INSERT INTO build_classes (platform, require) SELECT 'ios', 'n=' || i FROM generate_series(2, $1) i`, store.MaxClasses)
	b.exec(`WITH b AS (INSERT INTO builds (id, platform, class, token_hash, submitter) SELECT 'b' || id, 'ios', id, '\x00', 'key' || id FROM build_classes WHERE require <> '' RETURNING id, seq)
		INSERT INTO build_ids (id, seq) SELECT id, seq FROM b`)
	submit := func(require string) error {
		id := store.NewID()
		_, err := b.builds.Submit(t.Context(), store.Submission{ID: id, Platform: store.Android, Require: store.StoredRequire(require), Source: storetest.File("builds/"+id+"/source.zip", "s")})
		return err
	}
	require.NoError(t, submit("one=more"))
	err := submit("too=many")
	require.Equal(t, store.Unprocessable, store.CodeOf(err))
	require.ErrorContains(t, err, "256 different platforms and requirements")
	require.NoError(t, submit("one=more"), "others wait with the same requirements")
	require.NoError(t, submit(""), "without requirements there is no limit")
	b.exec(`WITH b AS (UPDATE builds SET class = 0 FROM build_classes k WHERE k.id = class AND require = 'n=8' RETURNING seq, k.id)
		INSERT INTO build_inputs (build, home_class, due_at) SELECT seq, id, now() + interval '1 h' FROM b`)
	require.Equal(t, store.Unprocessable, store.CodeOf(submit("too=many")), "the build that waits for its retry is of a class again later")
	b.exec(`UPDATE builds SET state = 'cancelled', completed_at = now() WHERE class = (SELECT id FROM build_classes WHERE require = 'n=7')`)
	require.Equal(t, store.Unprocessable, store.CodeOf(submit("too=many")), "the plain class of android waits, too")
}

// However many submit at once on two controllers, in whatever batches, a key leaves as many classes
// to others as it has. What is refused leaves no class behind and takes no number.
func TestAKeyLeavesClassesToOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	another := postgres.NewBuilds(storetest.Another(t, b.Database).DB, postgres.BuildsConfig{QueueLimit: 1000})
	var n atomic.Int64
	submit := func(builds *postgres.Builds, key string) error {
		_, err := builds.Submit(t.Context(), edited(t, by(key, 0), requires(fmt.Sprint("n=", n.Add(1)))))
		return err
	}
	fill := func(key string, want int) {
		t.Helper()
		var accepted atomic.Int64
		var all sync.WaitGroup
		for i := range want + 20 {
			all.Go(func() {
				switch err := submit([]*postgres.Builds{b.builds, another}[i%2], key); store.CodeOf(err) {
				case "":
					accepted.Add(1)
				case store.KeyClassesFull:
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, want, accepted.Load(), key)
	}
	fill("greedy", 128)
	classes, numbers := b.count(`SELECT count(*) FROM build_classes`), b.count(`SELECT last_value FROM build_classes_id_seq`)
	require.Equal(t, []int{128 + 2, 16 + 127}, []int{classes, numbers})
	require.ErrorContains(t, submit(b.builds, "greedy"), "key_classes_full: Builds of key greedy with 128 different platforms and requirements wait already, and the rest is left to other keys: "+
		"use requirements that more builds share, wait until some start, or cancel some")
	b.build(by("greedy", 0)) // without a requirement
	fill("second", 63)
	first := func(key string) (found store.Build) {
		all, _, err := b.builds.List(t.Context(), store.BuildFilter{}, store.Page{Limit: 300})
		require.NoError(t, err)
		return all[slices.IndexFunc(all, func(x store.Build) bool { return x.Submitter == key && len(x.Require) > 0 })]
	}
	ours := first("greedy")
	b.build(by("greedy", 0), on(first("second").Platform), requires(first("second").Require.String())) // another key's builds wait with it
	fill("third", 32)

	require.NoError(t, b.builds.Cancel(t.Context(), ours.ID, "", ""))
	require.Equal(t, store.KeyClassesFull, store.CodeOf(submit(b.builds, "greedy")), "it still has more than what is free")
	retry := edited(t, by("greedy", 0), requires(ours.Require.String()))
	retry.RetryOf = ours.ID
	_, err := b.builds.Submit(t.Context(), retry)
	require.Equal(t, store.KeyClassesFull, store.CodeOf(err), "or cancelling and retrying would get around it")
	require.NoError(t, submit(b.builds, ""), "the API key may have the rest")
	require.NoError(t, submit(b.builds, "newcomer"))
}

// A transaction that adds a class and is rolled back adds it again when it is repeated, for the
// submits that are left.
func TestAClassOfABuildThatWasRolledBackIsAddedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE INSERT ON builds FOR EACH ROW WHEN (NEW.id LIKE 'bad%') EXECUTE FUNCTION refuse()`)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			s := edited(t, requires(fmt.Sprint("n=", i)))
			if i%4 == 0 {
				s.ID = fmt.Sprint("bad", i)
			}
			if _, err := b.builds.Submit(t.Context(), s); (err == nil) != (i%4 > 0) {
				t.Error(s.ID, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 15, b.count(`SELECT count(*) FROM builds JOIN build_classes k ON k.id = class AND require <> ''`))
}

func TestBuildsThatNoWorkerCanTakeFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gpu, plain, linux := b.build(requires("gpu")), b.build(), b.build(on("linux"))
	w := b.worker(takes("linux"))
	fail := func(limit time.Duration) (ids []string) {
		for _, f := range must(b.queue.CheckClasses(t.Context(), limit))(t) {
			ids = append(ids, f.ID)
			require.NotZero(t, f.SubmittedAt)
		}
		slices.Sort(ids)
		return ids
	}
	require.Empty(t, fail(time.Minute), "since when is known from now on")
	require.Empty(t, fail(time.Minute))
	b.exec(`UPDATE build_classes SET unmatched_since = now() - interval '1 hour' WHERE unmatched_since IS NOT NULL`)
	require.Empty(t, fail(time.Minute), "the builds are young")
	b.exec(`UPDATE builds SET updated_at = now() - interval '1 hour'`)
	offline := b.worker(takes(store.IOS))
	b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, offline.id)
	require.Equal(t, []string{gpu.ID}, fail(time.Minute), "an offline worker is known")
	failed := b.find(gpu.ID)
	require.Equal(t, store.Failed, failed.State)
	require.Equal(t, "No worker can take this build: it needs ios with gpu", failed.ErrorMessage)
	require.Equal(t, failed.ErrorMessage, b.logs(gpu.ID)[1])
	must(b.workers.UnregisterID(t.Context(), offline.id, ""))(t)
	require.Empty(t, fail(time.Minute), "until now there was one")
	b.exec(`UPDATE build_classes SET unmatched_since = now() - interval '1 hour' WHERE unmatched_since IS NOT NULL`)
	require.Equal(t, []string{plain.ID}, fail(time.Minute))
	require.Equal(t, store.Pending, b.find(linux.ID).State)
	w.gets(linux.ID)
	require.Zero(t, b.count(`SELECT count(*) FROM build_classes WHERE unmatched_since IS NOT NULL AND id NOT IN ($1, 1)`, gpu.ClassID))
}

func TestWhatABuildPrefersIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	prefers := func(s *store.Submission) { s.Prefer = store.StoredRequire("pool=fast") }
	one, two := b.build(prefers), b.build(prefers, func(s *store.Submission) { s.Labels = store.Labels{"a": "b"} })
	require.Equal(t, "pool=fast", b.find(one.ID).Prefer.String())
	require.Empty(t, b.find(one.ID).Labels)
	require.Equal(t, store.Labels{"a": "b"}, b.find(two.ID).Labels)
	require.Equal(t, one.ClassID, two.ClassID)
	require.EqualValues(t, store.IOSClass, one.ClassID, "what is preferred makes no class")
	b.worker().gets(one.ID)
}
