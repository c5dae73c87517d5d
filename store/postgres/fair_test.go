package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// by submits with a key.
func by(key string, priority int) func(*store.Submission) {
	return func(s *store.Submission) { s.Submitter, s.Priority = key, priority }
}

// turns has a worker take n builds, and counts those of each submitter.
func turns(b *bundle, n int) map[string]int {
	w, got := b.worker(slots(n)), map[string]int{}
	for range n {
		got[b.find(jobID(w.poll())).Submitter]++
	}
	return got
}

func TestKeysTakeTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// As 0.1.0 inserts, one by one through the trigger.
	b.exec(`WITH b AS (INSERT INTO builds (id, platform, priority, token_hash, has_certs, log_lines, submitter) SELECT 'flood' || i, 'ios', 0, '\x00', false, 0, 'flood' FROM generate_series(1, 10000) i RETURNING id, seq),
		n AS (INSERT INTO build_ids (id, seq) SELECT id, seq FROM b)
		INSERT INTO build_files (build, kind, name, size, sha256, location) SELECT seq, 'source', 's', 1, sha256('x'), 'local' FROM b`)
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

func TestTheReleaseBeforeChangesPriorities(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.worker(slots(10))
	first, second := b.build(), b.build()
	b.exec(`UPDATE builds SET priority = 4 WHERE id = '` + second.ID + `'`) // as 0.1.0 does
	got := w.poll()
	require.Equal(t, second.ID, jobID(got), fmt.Sprint(got))
	require.Equal(t, 4, got.Job.Priority)
	require.Equal(t, first.ID, jobID(w.poll()))
}
