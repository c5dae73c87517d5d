package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/cmd/internal/load"
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
func (c *controller) claims(ctx context.Context, pollers []*poller, d time.Duration) (sample, error) {
	if err := c.renew(ctx, pollers); err != nil {
		return sample{}, err
	}
	takers, jobs := make([]taker, len(pollers)), 0
	for i, p := range pollers {
		takers[i] = taker{p}
		jobs -= len(p.jobs)
	}
	res, err := load.Run(ctx, c.Address, d, clients(takers))
	for _, p := range pollers {
		jobs += len(p.jobs)
	}
	return work(jobs, res.Elapsed), err
}

// queueOf is a controller whose queue is kept at one depth.
type queueOf struct {
	*controller
	pollers []*poller
}

// claimsFor measures the claims while the depth is kept.
func (q *queueOf) claimsFor(d time.Duration) take {
	return func(ctx context.Context, _ int) (sample, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(errors.New("measured"))
		fed := make(chan error, 1)
		go func() { fed <- q.db.exec(ctx, fmt.Sprintf(keepDepth, d.Milliseconds())) }()
		got, err := q.claims(ctx, q.pollers, d)
		if err != nil {
			cancel(err)
		}
		return got, errors.Join(err, <-fed)
	}
}

// queueWith starts a controller with so many builds.
func (r *run) queueWith(ctx context.Context, name string, finished, pending int) (*queueOf, error) {
	c, err := r.start(ctx, name)
	if err != nil {
		return nil, err
	}
	r.say("A6: making %d finished and %d pending builds", finished, pending)
	if err := c.db.exec(ctx, fmt.Sprintf(history, finished)); err != nil {
		return nil, err
	}
	if err := c.refill(ctx, pending); err != nil {
		return nil, err
	}
	pollers, err := c.pollers(ctx, connections)
	return &queueOf{c, pollers}, err
}

// depth takes A6.
func (r *run) depth(ctx context.Context) error {
	brief := min(1, r.duration.Seconds()/10)
	finished, pending := int(deepFinished*brief), int(deepPending*brief)
	shallow, err := r.queueWith(ctx, "shallow", 0, shallowPending)
	if err != nil {
		return err
	}
	deep, err := r.queueWith(ctx, "deep", finished, pending)
	if err != nil {
		return err
	}
	p, err := r.turns(ctx, "A6: claims from a short and from a long queue", shallow.claimsFor(r.duration), deep.claimsFor(r.duration))
	if err != nil {
		return err
	}
	r.add(figure{
		name: "A6", what: fmt.Sprintf("claims with %d pending and %d finished builds against %d pending", pending, finished, shallowPending),
		measured: fmt.Sprintf("%.0f/s, short queue %.0f/s", p.own.rate(), p.peer.rate()),
	}.atLeast(p.ratio(), .8, ", nothing twice"))
	return errors.Join(shallow.db.checkHandedOutOnce(ctx, shallow.pollers), deep.db.checkHandedOutOnce(ctx, deep.pollers))
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

const sqlSnapshotAge = `SELECT age(backend_xmin) FROM pg_stat_activity WHERE application_name = 'somebody else'`

const endSnapshot = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'somebody else';`

// hold keeps a snapshot open until end is called, which waits for it.
func hold(ctx context.Context, db database) (end func() error, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = db.exec(ctx, holdSnapshot) // ends by being ended
	}()
	for {
		n, err := db.number(ctx, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'somebody else' AND backend_xmin IS NOT NULL`)
		if err != nil || n > 0 {
			return func() error {
				err := db.exec(context.WithoutCancel(ctx), endSnapshot)
				<-done
				return err
			}, err
		}
		select {
		case <-done:
			return nil, errors.New("the transaction that should hold a snapshot ended")
		default:
		}
	}
}

// snapshot takes A8.
func (r *run) snapshot(ctx context.Context) (err error) {
	c, err := r.start(ctx, "snapshot")
	if err != nil {
		return err
	}
	pollers, err := c.pollers(ctx, connections)
	if err != nil {
		return err
	}
	if err := c.refill(ctx, r.backlog()); err != nil {
		return err
	}
	end, err := hold(ctx, c.db)
	if err != nil {
		return err
	}
	held := time.Now()
	rates, err := r.claimsHeldBack(ctx, c, pollers)
	if err == nil && time.Since(held) > alarmAfter {
		err = r.alarm(ctx, c)
	}
	if err = errors.Join(err, end()); err != nil {
		return err
	}
	first, last := rates[0], rates[snapshotLoads-1]
	r.add(figure{
		name: "A8", what: fmt.Sprintf("claims after %s of a foreign snapshot held open against the first %s", (snapshotLoads-1)*r.duration, r.duration),
		measured: fmt.Sprintf("%.0f/s, first %.0f/s", last, first),
	}.atLeast(last/first, .5, ", nothing twice"))
	return c.db.checkHandedOutOnce(ctx, pollers)
}

// claimsHeldBack measures claims, again and again.
func (r *run) claimsHeldBack(ctx context.Context, c *controller, pollers []*poller) (rates [snapshotLoads]float64, err error) {
	for i := range rates {
		r.say("A8: claims under an open snapshot, part %d of %d", i+1, snapshotLoads)
		got, err := c.claims(ctx, pollers, r.duration)
		if err == nil {
			err = c.refill(ctx, r.backlog())
		}
		if err != nil {
			return rates, err
		}
		rates[i] = got.Rate()
	}
	return rates, nil
}

// alarm adds whether takt reports that the database could not be vacuumed, unless too little
// happened for that to matter.
func (r *run) alarm(ctx context.Context, c *controller) error {
	if age, err := c.db.number(ctx, sqlSnapshotAge); err != nil || age < alarmBusy {
		return err
	}
	seconds, err := c.Metric(ctx, "takt_vacuum_held_back_seconds")
	if err != nil {
		return err
	}
	r.add(figure{
		name: "A8", what: "the alarm that the snapshot holds vacuum back", measured: fmt.Sprintf("for %.0f s", seconds),
		ratio: "-", target: "raised", met: seconds > 0,
	})
	return nil
}
