package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"takt/cmd/internal/process"
)

const (
	// snapshotLoads is how many loads A8 takes, one after the other; of 10 s, the
	// last begins when the snapshot is a minute old.
	snapshotLoads = 7
	// alarmAfter is when takt has to have raised its alarm: a minute, and some
	// seconds to notice.
	alarmAfter = 70 * time.Second
)

// holdSnapshot keeps a transaction of somebody else open, as a long dump does.
const holdSnapshot = `
SET application_name = 'somebody else';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM builds;
SELECT pg_sleep(3600);
`

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
	c, err := r.Controller(ctx, "snapshot")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
	db := databaseOf(c)
	pollers, err := newPollers(ctx, c, db, connections)
	if err != nil {
		return err
	}
	if err := r.refill(ctx, db, r.backlog()); err != nil {
		return err
	}
	end, err := hold(ctx, db)
	if err != nil {
		return err
	}
	held := time.Now()
	defer func() {
		if end != nil {
			err = errors.Join(err, end())
		}
	}()
	rates := make([]float64, snapshotLoads)
	for i := range rates {
		r.say("A8: claims under an open snapshot, part %d of %d", i+1, snapshotLoads)
		if rates[i], err = claims(ctx, c, pollers, r.duration); err != nil {
			return err
		}
		if err := r.refill(ctx, db, r.backlog()); err != nil {
			return err
		}
	}
	first, last := rates[0], rates[snapshotLoads-1]
	r.add(figure{
		name: "A8", what: fmt.Sprintf("claims after %s of a foreign snapshot held open against the first %s",
			(snapshotLoads-1)*r.duration, r.duration),
		measured: fmt.Sprintf("%.0f/s, first %.0f/s", last, first),
		ratio:    fmt.Sprintf("%.2f", last/first), target: "≥ 0.5, nothing twice", met: last/first >= .5,
	})
	if time.Since(held) > alarmAfter {
		if err := r.alarm(ctx, c); err != nil {
			return err
		}
	}
	err = end()
	end = nil
	return errors.Join(err, r.checkHandedOutOnce(ctx, db, pollers))
}

// alarm adds whether takt tells that the database could not be vacuumed.
func (r *run) alarm(ctx context.Context, c *process.Controller) error {
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
