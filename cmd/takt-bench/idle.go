package main

import (
	"context"
	"fmt"
	"time"
)

const (
	// settle is how long a controller gets to finish what it does at its start, and its new
	// database to collect statistics of itself, which autovacuum does once a minute. idleFor is how
	// long it is watched then, because what it does rarely counts too.
	settle  = 2 * time.Minute
	idleFor = time.Minute
	// The targets of E5: statements a second, processor time as a share of a core, and
	// bytes of WAL a minute, which are River's leader row.
	idleStatements = 3
	idleCPU        = .005
	idleWAL        = 20_000
)

// reading is what a controller has done so far.
type reading struct {
	statements float64
	wal        int
	cpu        usage
}

func (c *controller) reading(ctx context.Context) (r reading, err error) {
	if r.statements, err = c.Metric(ctx, "takt_database_statement_duration_seconds_count"); err != nil {
		return r, err
	}
	if r.wal, err = c.db.number(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`); err != nil {
		return r, err
	}
	r.cpu, err = c.usage()
	return r, err
}

// idle takes E5: what a controller costs that has no workers, no work and no viewers.
func (r *run) idle(ctx context.Context) error {
	c, err := r.start(ctx, "idle")
	if err != nil {
		return err
	}
	r.say("E5: a controller without workers, work and viewers, for %s", idleFor)
	if err := pause(ctx, settle); err != nil {
		return err
	}
	before, err := c.reading(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, idleFor); err != nil {
		return err
	}
	after, err := c.reading(ctx)
	if err != nil {
		return err
	}
	cpu := after.cpu.minus(before.cpu)
	share := func(d time.Duration) float64 { return d.Seconds() / idleFor.Seconds() }
	add := func(what, measured string, got, most float64) {
		r.add(figure{name: "E5", what: "idle, no viewer: " + what, measured: measured}.atMost(got/most, 1))
	}
	statements := (after.statements - before.statements) / idleFor.Seconds()
	add("statements", fmt.Sprintf("%.1f/s of %d", statements, idleStatements), statements, idleStatements)
	add("processor time", fmt.Sprintf("takt %.2f %%, PostgreSQL %.2f %% of a core", 100*share(cpu.takt), 100*share(cpu.postgres)), share(cpu.takt+cpu.postgres), idleCPU)
	wal := float64(after.wal - before.wal)
	add("WAL", fmt.Sprintf("%.1f kB a minute", wal/1000), wal, idleWAL)
	return nil
}

// pause waits for d, or fails with the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
