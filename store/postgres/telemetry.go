package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlTelemetry keeps the last figures that made sense.
const sqlTelemetry = `
INSERT INTO worker_telemetry AS t (worker_id, build_id, type, stage, cpu_percent, memory_mb, disk_percent, processes,
	uptime_seconds, cpu_sum, cpu_count)
VALUES ($1, $2, $3, nullif($4, ''), $5, $6, $7, $8, $9, coalesce($5::float8, 0), ($5::float8 IS NOT NULL)::int)
ON CONFLICT (worker_id) DO UPDATE SET
	build_id = excluded.build_id, at = now(), type = excluded.type,
	stage = coalesce(excluded.stage, t.stage),
	cpu_percent = coalesce(excluded.cpu_percent, t.cpu_percent), memory_mb = coalesce(excluded.memory_mb, t.memory_mb),
	disk_percent = coalesce(excluded.disk_percent, t.disk_percent), processes = coalesce(excluded.processes, t.processes),
	uptime_seconds = coalesce(excluded.uptime_seconds, t.uptime_seconds),
	cpu_sum = t.cpu_sum + excluded.cpu_sum, cpu_count = t.cpu_count + excluded.cpu_count`

// Telemetry records a sign of life as Touch does, and what it says of the
// worker's machine. Errors as Held.
func (b *Builds) Telemetry(ctx context.Context, s store.Beat, t store.Telemetry) (reply store.BeatReply, err error) {
	err = b.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		st, err := readRelation(ctx, tx, s)
		if err != nil {
			return err
		}
		if err := st.access(s.WorkerID, s.Attempt); err != nil {
			return err
		}
		// First: who deletes a worker locks its identity, then this row, and then
		// the worker and its builds, which touch locks in the same order.
		_, err = tx.Exec(ctx, sqlTelemetry, s.WorkerID, s.BuildID, store.Text(t.Type), store.Text(t.Stage),
			t.CPUPercent, t.MemoryMB, t.DiskPercent, t.Processes, t.UptimeSeconds)
		if err != nil {
			return fmt.Errorf("keeping telemetry of worker %s: %w", s.WorkerID, err)
		}
		reply.Began = st.state == store.Assigned
		return b.touch(ctx, tx, st, s)
	})
	return reply, err
}
