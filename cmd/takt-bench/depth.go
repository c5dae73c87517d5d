package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

// The two depths of A6, for loads of 10 s. Shorter ones get a shorter history, so
// that a brief run is brief.
const (
	shallowPending = 1_000
	deepPending    = 1_000_000
	deepFinished   = 5_000_000
)

// history makes finished builds, with their names in order: millions of random
// ones would take minutes, and nobody looks for them.
const history = `
SET synchronous_commit = off;
WITH b AS (INSERT INTO builds (id, platform, token_hash, state, worker_id, attempt, started_at, last_seen_at, completed_at)
	SELECT 'history-' || lpad(i::text, 12, '0'), CASE i %% 2 WHEN 0 THEN 'ios' ELSE 'android' END, '\x00', 'completed',
		'worker-' || i %% 1000, 1, now(), now(), now() FROM generate_series(1, %d) i RETURNING id, seq)
INSERT INTO build_ids (id, seq) SELECT id, seq FROM b;
VACUUM (FREEZE, ANALYZE) builds, build_ids;
CHECKPOINT;
`

// keepDepth adds, for a time, as many builds as workers were given since it began.
const keepDepth = `
DO $$
DECLARE
	begun bigint := (SELECT sum(held) FROM workers);
	until timestamptz := clock_timestamp() + interval '%d milliseconds';
	fed bigint := 0;
	n bigint;
BEGIN
	WHILE clock_timestamp() < until LOOP
		n := (SELECT sum(held) FROM workers) - begun - fed;
		WITH b AS (INSERT INTO builds (id, platform, token_hash)
			SELECT left(md5(random()::text), 21), 'ios', '\x00' FROM generate_series(1, n) RETURNING id, seq)
		INSERT INTO build_ids (id, seq) SELECT id, seq FROM b;
		fed := fed + n;
		COMMIT;
		PERFORM pg_sleep(0.002);
	END LOOP;
END $$;
`

// claims lets the pollers work for d and counts the builds that they were given.
func (c *controller) claims(ctx context.Context, pollers []*poller, d time.Duration) sample {
	c.renew(ctx, pollers)
	jobs := 0
	for _, p := range pollers {
		p.either = true
		jobs -= len(p.jobs)
	}
	res := must.Get(load.Run(ctx, c.Address, d, clients(pollers)))
	for _, p := range pollers {
		jobs += len(p.jobs)
	}
	return work(jobs, res.Elapsed)
}

// queueOf is a controller whose queue is kept at one depth.
type queueOf struct {
	*controller
	pollers []*poller
}

// claimsFor measures the claims while the depth is kept.
func (q *queueOf) claimsFor(ctx context.Context, d time.Duration) take {
	return func(int) sample {
		fed := must.Beside(func() { q.db.exec(ctx, fmt.Sprintf(keepDepth, d.Milliseconds())) })
		var got sample
		err := must.Try(func() { got = q.claims(ctx, q.pollers, d) })
		must.Do(errors.Join(err, fed()))
		return got
	}
}

// queueWith starts a controller with so many builds.
func (r *run) queueWith(ctx context.Context, name string, finished, pending int) *queueOf {
	c := r.start(ctx, name)
	r.say("A6: making %d finished and %d pending builds", finished, pending)
	c.db.exec(ctx, fmt.Sprintf(history, finished))
	c.refill(ctx, pending)
	return &queueOf{c, c.pollers(ctx, connections)}
}

// depth takes A6.
func (r *run) depth(ctx context.Context) {
	brief := min(1, r.duration.Seconds()/10)
	finished, pending := int(deepFinished*brief), int(deepPending*brief)
	shallow, deep := r.queueWith(ctx, "shallow", 0, shallowPending), r.queueWith(ctx, "deep", finished, pending)
	r.compare(comparison{
		name: "A6", what: fmt.Sprintf("claims with %d pending and %d finished builds against %d pending", pending, finished, shallowPending), peer: "short queue",
		theirs: shallow.claimsFor(ctx, r.duration), own: deep.claimsFor(ctx, r.duration), least: .8, also: ", nothing twice",
	})
	shallow.db.checkHandedOutOnce(ctx, shallow.pollers)
	deep.db.checkHandedOutOnce(ctx, deep.pollers)
}

const (
	// snapshotLoads is how many loads A8 takes, one after the other; of 10 s, the
	// last begins when the snapshot is a minute old.
	snapshotLoads = 7
	// alarmAfter is when takt has to have raised its alarm: a minute, and some
	// seconds to notice.
	alarmAfter = 70 * time.Second
	// alarmBusy is how many transactions have to begin meanwhile.
	alarmBusy = 1000
)

// holdSnapshot keeps a transaction of somebody else open, as a long dump does.
const holdSnapshot = `
SET application_name = 'somebody else';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM builds;
SELECT pg_sleep(3600);
`

const sqlSnapshot = ` FROM pg_stat_activity WHERE application_name = 'somebody else' AND backend_xmin IS NOT NULL`

// hold keeps a snapshot open until end is called, which waits for it.
func (c *controller) hold(ctx context.Context) (end func()) {
	held := must.Beside(func() { c.db.exec(ctx, holdSnapshot) })
	must.Do(c.Await(ctx, "a snapshot to be held", nil, func(ctx context.Context) (bool, error) {
		return c.db.number(ctx, "SELECT count(*)"+sqlSnapshot) > 0, nil
	}))
	return func() {
		c.db.exec(context.WithoutCancel(ctx), "SELECT pg_terminate_backend(pid)"+sqlSnapshot)
		_ = held() // ends by being ended
	}
}

// snapshot takes A8.
func (r *run) snapshot(ctx context.Context) {
	c := r.start(ctx, "snapshot")
	pollers := c.pollers(ctx, connections)
	c.refill(ctx, r.backlog())
	end := c.hold(ctx)
	r.atEnd(func() error { return must.Try(end) }) // the database does not stop before
	held := time.Now()
	var rates [snapshotLoads]float64
	for i := range rates {
		r.say("A8: claims under an open snapshot, part %d of %d", i+1, snapshotLoads)
		rates[i] = c.claims(ctx, pollers, r.duration).Rate()
		c.refill(ctx, r.backlog())
	}
	first, last := rates[0], rates[snapshotLoads-1]
	r.add(figure{
		name: "A8", what: fmt.Sprintf("claims after %s of a foreign snapshot held open against the first %s", (snapshotLoads-1)*r.duration, r.duration),
		measured: fmt.Sprintf("%.0f/s, first %.0f/s", last, first),
	}.atLeast(last/first, .5, ", nothing twice"))
	// The alarm that the database can't be vacuumed, unless too little happened for that to matter.
	if time.Since(held) > alarmAfter && c.db.number(ctx, "SELECT age(backend_xmin)"+sqlSnapshot) >= alarmBusy {
		seconds := must.Get(c.Metric(ctx, "takt_vacuum_held_back_seconds"))
		r.add(figure{
			name: "A8", what: "the alarm that the snapshot holds vacuum back", measured: fmt.Sprintf("for %.0f s", seconds),
			ratio: "-", target: "raised", met: seconds > 0,
		})
	}
	c.db.checkHandedOutOnce(ctx, pollers)
}
