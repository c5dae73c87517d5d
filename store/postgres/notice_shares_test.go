package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// noticeFixture is a database with subscriptions.
type noticeFixture struct {
	*storetest.Database
	*postgres.Notices
	t *testing.T
}

func noticesOf(t *testing.T, subscriptions ...store.Subscription) *noticeFixture {
	t.Helper()
	db := storetest.New(t)
	b := &noticeFixture{db, postgres.NewNotices(db.DB), t}
	for _, s := range subscriptions {
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		s.URL, s.Secrets = "https://x/"+s.ID, []byte("s")
		require.NoError(t, b.Create(t.Context(), s))
	}
	return b
}

func (b *noticeFixture) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.Pool.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err, sql)
}

// count counts notices.
func (b *noticeFixture) count(where string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.Pool.QueryRow(b.t.Context(), `SELECT count(*) FROM river_job j WHERE kind = 'notice' AND `+where, args...).Scan(&n))
	return n
}

// wait inserts notices that wait for a subscription.
func (b *noticeFixture) wait(subscription string, n int) {
	b.t.Helper()
	b.exec(`INSERT INTO river_job (kind, queue, max_attempts, args)
		SELECT 'notice', 'notices', 11, jsonb_build_object('subscription', $1::text, 'body', '{}'::jsonb) FROM generate_series(1, $2)`, subscription, n)
}

// takes has a client take notices, and returns how many of which subscription it holds then.
func (b *noticeFixture) takes(client string, free, each, shared int) map[string]int {
	b.t.Helper()
	_, err := b.Take(b.t.Context(), client, free, each, shared)
	require.NoError(b.t, err)
	rows := must(b.Pool.Query(b.t.Context(), `SELECT args->>'subscription', count(*) FROM river_job
		WHERE state = 'running' AND attempted_by[cardinality(attempted_by)] = $1 GROUP BY 1`, client))(b.t)
	held := map[string]int{}
	for rows.Next() {
		var s string
		var n int
		require.NoError(b.t, rows.Scan(&s, &n))
		held[s] = n
	}
	require.NoError(b.t, rows.Err())
	return held
}

// A subscription holds no more places than its share, whatever waits for it, and none is without
// a place because others hold all.
func TestEachSubscriptionHasPlaces(t *testing.T) {
	t.Parallel()
	b := noticesOf(t)
	b.wait("a", 300) // subscriptions that were deleted have places too: what waits for them ends at once
	require.Equal(t, map[string]int{"a": 4}, b.takes("one", 100, 4, 7))
	require.Equal(t, map[string]int{"a": 4}, b.takes("one", 100, 4, 7))
	b.wait("b", 300)
	b.wait("c", 300)
	require.Equal(t, map[string]int{"a": 4, "b": 3, "c": 3}, b.takes("one", 100, 4, 7), "all shared places are held")
	b.wait("d", 300)
	b.wait("e", 1)
	require.Equal(t, map[string]int{"a": 4, "b": 3, "c": 3, "d": 1, "e": 1}, b.takes("one", 100, 4, 7))
	b.exec(`UPDATE river_job SET state = 'completed', finalized_at = now() WHERE args->>'subscription' = 'a' AND state = 'running'`)
	require.Equal(t, map[string]int{"a": 3, "b": 3, "c": 3, "d": 2, "e": 1}, b.takes("one", 100, 4, 7), "those with the fewest are the first")
	require.Equal(t, map[string]int{"a": 1, "b": 1}, b.takes("two", 2, 4, 7), "another controller has places of its own")
	b.exec(`UPDATE river_job SET state = 'available', scheduled_at = now() + interval '1 hour' WHERE state <> 'completed'`)
	require.Empty(t, b.takes("one", 100, 4, 7), "what is not due waits")
}

func TestATakenNoticeIsAnAttempt(t *testing.T) {
	t.Parallel()
	b := noticesOf(t)
	b.wait("a", 1)
	for attempt := 1; attempt <= 12; attempt++ {
		b.takes(fmt.Sprint("client", attempt), 1, 1, 0)
		require.Equal(t, 1, b.count(`attempt = $1 AND attempted_at > now() - interval '1 minute' AND cardinality(attempted_by) = $2`, attempt, min(attempt, 10)))
		b.exec(`UPDATE river_job SET state = 'available'`)
	}
}

// The search for what waits reads a few rows, however many wait.
func TestTakingNoticesReadsNoBacklog(t *testing.T) {
	t.Parallel()
	b := noticesOf(t)
	b.wait("a", 20000)
	b.wait("b", 3)
	b.exec(`VACUUM ANALYZE river_job`)
	b.takes("one", 100, 8, 60)
	rows, err := b.Pool.Query(t.Context(), `EXPLAIN `+stringConstants(t)["sqlTakeNotices"], "one", 8, 60, 100)
	require.NoError(t, err)
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		require.NotContains(t, line, "Seq Scan on river_job")
	}
	require.NoError(t, rows.Err())
}

// A worker that goes and comes all the time makes few notices, the last of which says how it is.
func TestAWorkerThatComesAndGoesMakesFewNotices(t *testing.T) {
	t.Parallel()
	b := noticesOf(t, store.Subscription{ID: "all"}, store.Subscription{ID: "offline", NoticeFilter: store.NoticeFilter{Events: []string{"worker.offline"}}})
	b.exec(`INSERT INTO workers (id) VALUES ('w'), ('v')`)
	flap := func(worker string) {
		b.exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, worker)
		b.exec(`UPDATE workers SET status = 'idle' WHERE id = $1`, worker)
	}
	of := `args->>'subscription' = $1 AND args->'body'->'data'->>'id' = $2`
	const last = ` AND args->'body'->>'type' = $3 AND scheduled_at <= now() + make_interval(secs => $4) AND scheduled_at > now() + make_interval(secs => $4 - 60)`
	for range 150 {
		flap("w")
	}
	require.Equal(t, 1, b.count(of, "all", "w"), "none was sent yet: the last one says all")
	require.Equal(t, 1, b.count(of+last, "all", "w", "worker.back", 0))
	require.Equal(t, 1, b.count(of+last, "offline", "w", "worker.offline", 0))
	require.Equal(t, 1, b.count(`state = 'available' AND args->>'id' ~ '^msg_[0-9a-f]{32}$' AND `+of, "all", "w"))

	sent := func() {
		for range 10 {
			b.takes("one", 1000, 1000, 1000)
			b.exec(`UPDATE river_job SET state = 'retryable' WHERE state = 'running' AND args->>'subscription' = 'all'`)
			flap("w")
		}
	}
	sent()
	require.Equal(t, 5, b.count(of, "all", "w"), "four at once, and one that waits")
	require.Equal(t, 1, b.count(of+last, "all", "w", "worker.back", 60))
	require.Equal(t, 4, b.count(of+` AND attempt = 1`, "all", "w"), "one that was tried stays")
	flap("v")
	require.Equal(t, 1, b.count(of+last, "all", "v", "worker.back", 0), "another worker is told of at once")
	b.exec(`UPDATE workers SET quarantine = 'k of n' WHERE id = 'w'`)
	require.Equal(t, 1, b.count(of+last, "all", "w", "worker.quarantined", 0))
	b.exec(`UPDATE river_job SET created_at = now() - interval '5 minutes' WHERE kind = 'notice'`)
	b.takes("one", 1000, 1000, 1000)
	b.exec(`UPDATE river_job SET attempt = 1`)
	b.exec(`UPDATE workers SET status = 'offline'`)
	require.Equal(t, 1, b.count(of+last+` AND attempt = 0`, "all", "w", "worker.offline", 0), "after a while the next is sent at once")
}

// A transaction does not wait for a notice that another one has locked.
func TestANoticeThatIsLockedIsNotReplaced(t *testing.T) {
	t.Parallel()
	b := noticesOf(t, store.Subscription{ID: "all"})
	b.exec(`INSERT INTO workers (id) VALUES ('w')`)
	b.exec(`UPDATE workers SET status = 'offline'`)
	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), `SELECT FROM river_job FOR UPDATE`)
	require.NoError(t, err)
	b.exec(`UPDATE workers SET status = 'idle'`)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, 2, b.count(`state = 'available'`))
}

// Parts of . and .. would lead to other paths of GitHub. SQL and Go have the same rule.
func TestNoStatusIsSetOfWhatIsNoCommit(t *testing.T) {
	t.Parallel()
	b := noticesOf(t, store.Subscription{ID: "github", GitHub: true})
	sha := strings.Repeat("0a", 20)
	for label, good := range map[string]bool{
		"o/r@" + sha: true, "o-1/.github@" + sha: true, "o_x/a..b@" + sha: true, ".../...@" + sha: true, "o/..a@" + sha: true,
		"../..@" + sha: false, "o/..@" + sha: false, "o/.@" + sha: false, "../r@" + sha: false, "./r@" + sha: false, "o/r/x@" + sha: false,
		"o@" + sha: false, "/r@" + sha: false, "o/@" + sha: false, "o/r@" + sha[1:]: false, "o/r@" + sha + "\n": false, "o/r%2f@" + sha: false, "": false,
	} {
		b.exec(`INSERT INTO builds (id, platform, token_hash) VALUES ($1, 'ios', '')`, label)
		b.exec(`INSERT INTO build_labels (build, labels) SELECT seq, jsonb_build_object('github', id) FROM builds WHERE id = $1`, label)
		b.exec(`UPDATE builds SET state = 'failed', completed_at = now() WHERE id = $1`, label)
		require.Equal(t, map[bool]int{true: 2}[good], b.count(`args->'body'->'data'->>'id' = $1`, label), label)
		repo, commit, ok := store.ParseCommit(label)
		require.Equal(t, good, ok, label)
		if good {
			require.Equal(t, label, repo+"@"+commit)
		}
	}
}

// A new URL drops what waits, also what was given up; what is being sent, and what has been made
// from before the change was committed, are of the version before.
func TestANewURLDropsWhatWaits(t *testing.T) {
	t.Parallel()
	b := noticesOf(t, store.Subscription{ID: "s"}, store.Subscription{ID: "other"})
	b.exec(`INSERT INTO workers (id) SELECT 'w' || i FROM generate_series(1, 6) i`)
	b.exec(`UPDATE workers SET status = 'offline'`)
	b.exec(`UPDATE river_job SET state = (ARRAY['available', 'scheduled', 'retryable', 'running', 'completed', 'discarded'])[n]::river_job_state,
		finalized_at = CASE WHEN n > 4 THEN now() END FROM (SELECT id, right(args->'body'->'data'->>'id', 1)::int AS n FROM river_job) i WHERE i.id = river_job.id`)
	change := func(url string) store.Subscription {
		t.Helper()
		s, err := b.Update(t.Context(), "s", func(s *store.Subscription) error { s.URL = url; return nil })
		require.NoError(t, err)
		found, err := b.Receiver(t.Context(), "s")
		require.NoError(t, err)
		require.Equal(t, found.Version, s.Version)
		return s
	}
	s := change("https://x/s")
	require.Zero(t, s.Version, "it is the same URL")
	require.Equal(t, 12, b.count(`true`))

	tx, err := b.Pool.Begin(t.Context()) // an event meanwhile
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	_, err = tx.Exec(t.Context(), `UPDATE workers SET status = 'idle' WHERE id = 'w5'`)
	require.NoError(t, err)
	s = change("https://y")
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, []int{1, 0, 0}, []int{s.Version, s.Waiting, s.Dead})
	require.Equal(t, 1, b.count(`args->>'subscription' = 's' AND state = 'running' AND args->>'version' = '0'`))
	require.Equal(t, 1, b.count(`args->>'subscription' = 's' AND state = 'completed'`))
	require.Equal(t, 1, b.count(`args->>'subscription' = 's' AND state = 'available' AND args->>'version' = '0'`))
	require.Equal(t, 3, b.count(`args->>'subscription' = 's'`))
	require.GreaterOrEqual(t, b.count(`args->>'subscription' = 'other'`), 6)
	b.exec(`UPDATE workers SET status = 'idle' WHERE id = 'w2'`)
	require.NoError(t, b.Test(t.Context(), "s"))
	require.Equal(t, 2, b.count(`args->>'subscription' = 's' AND args->>'version' = '1'`))
}
