package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/process"
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

// taker is a poller that may find nothing.
type taker struct{ *poller }

// Got implements load.Client.
func (t taker) Got(status int, body []byte) error {
	_, ok := cut(body, `"job":{"id":"`)
	t.idle = !ok
	return t.poller.Got(status, body)
}

// claims lets the pollers work for d and returns how many builds a second they
// were given.
func claims(ctx context.Context, c *process.Controller, pollers []*poller, d time.Duration) (float64, error) {
	count := func() (n int) {
		for _, p := range pollers {
			n += len(p.jobs)
		}
		return n
	}
	clients := make([]load.Client, len(pollers))
	for i, p := range pollers {
		clients[i] = taker{p}
	}
	before := count()
	res, err := load.Run(ctx, c.Address, d, clients)
	if err != nil {
		return 0, err
	}
	return float64(count()-before) / res.Elapsed.Seconds(), nil
}

// queueOf is a controller whose queue is kept at one depth.
type queueOf struct {
	*process.Controller
	db      database
	pollers []*poller
	rates   []float64
}

// round measures the claims while the depth is kept.
func (q *queueOf) round(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errors.New("measured"))
	fed := make(chan error, 1)
	go func() { fed <- q.db.exec(ctx, fmt.Sprintf(keepDepth, d.Milliseconds())) }()
	rate, err := claims(ctx, q.Controller, q.pollers, d)
	if err != nil {
		cancel(err)
	}
	q.rates = append(q.rates, rate)
	return errors.Join(err, <-fed)
}

// queueWith starts a controller with so many builds.
func (r *run) queueWith(ctx context.Context, name string, finished, pending int) (*queueOf, error) {
	c, err := r.Controller(ctx, name)
	if err != nil {
		return nil, err
	}
	q := &queueOf{Controller: c, db: databaseOf(c)}
	r.say("A6: making %d finished and %d pending builds", finished, pending)
	if err := q.db.exec(ctx, fmt.Sprintf(history, finished)); err != nil {
		return q, err
	}
	if err := r.refill(ctx, q.db, pending); err != nil {
		return q, err
	}
	q.pollers, err = newPollers(ctx, c, q.db, connections)
	return q, err
}

// depth takes A6.
func (r *run) depth(ctx context.Context) (err error) {
	brief := min(1, r.duration.Seconds()/10)
	var queues [2]*queueOf
	for i, size := range [2][2]int{{0, shallowPending}, {int(deepFinished * brief), int(deepPending * brief)}} {
		q, err := r.queueWith(ctx, fmt.Sprintf("depth-%d", i), size[0], size[1])
		if q != nil {
			defer func() { ending(ctx, q.Controller, &err) }()
		}
		if err != nil {
			return err
		}
		queues[i] = q
	}
	shallow, deep := queues[0], queues[1]
	var ratios []float64
	for i := range r.rounds {
		r.say("A6: claims from a short and from a long queue, round %d of %d", i+1, r.rounds)
		for _, q := range queues {
			if err := q.round(ctx, r.duration); err != nil {
				return err
			}
		}
		ratios = append(ratios, deep.rates[i]/shallow.rates[i])
	}
	r.add(figure{
		name: "A6", what: fmt.Sprintf("claims with %d pending and %d finished builds against %d pending",
			int(deepPending*brief), int(deepFinished*brief), shallowPending),
		measured: fmt.Sprintf("%.0f/s, short queue %.0f/s", median(deep.rates), median(shallow.rates)),
		ratio:    fmt.Sprintf("%.2f", median(ratios)), target: "≥ 0.8, nothing twice", met: median(ratios) >= .8,
	})
	for _, q := range queues {
		if err := r.checkHandedOutOnce(ctx, q.db, q.pollers); err != nil {
			return err
		}
	}
	return nil
}
