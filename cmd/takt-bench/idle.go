package main

import (
	"context"
	"fmt"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
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

// idle takes E5: what a controller costs that has no workers, no work and no viewers.
func (r *run) idle(ctx context.Context) {
	c := r.start(ctx, "idle")
	r.say("E5: a controller without workers, work and viewers, for %s", idleFor)
	const metric = "takt_database_statement_duration_seconds_count"
	process.Pause(ctx, settle)
	statements, wal, cpu := must.Get(c.Metric(ctx, metric)), c.db.number(ctx, sqlWAL), c.usage()
	process.Pause(ctx, idleFor)
	statements = (must.Get(c.Metric(ctx, metric)) - statements) / idleFor.Seconds()
	wal = c.db.number(ctx, sqlWAL) - wal
	cpu = c.usage().minus(cpu)
	share := func(d time.Duration) float64 { return d.Seconds() / idleFor.Seconds() }
	add := func(what, measured string, got, most float64) {
		r.add(figure{name: "E5", what: "idle, no viewer: " + what, measured: measured}.atMost(got/most, 1))
	}
	add("statements", fmt.Sprintf("%.1f/s of %d", statements, idleStatements), statements, idleStatements)
	add("processor time", fmt.Sprintf("takt %.2f %%, PostgreSQL %.2f %% of a core", 100*share(cpu.takt), 100*share(cpu.postgres)), share(cpu.takt+cpu.postgres), idleCPU)
	add("WAL", fmt.Sprintf("%.1f kB a minute", float64(wal)/1000), float64(wal), idleWAL)
}
