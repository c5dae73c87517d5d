package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// timeoutsRow is the stored form of store.Timeouts, in seconds.
type timeoutsRow struct {
	CheckInterval float64 `json:"check_interval"`
	BuildTimeout  float64 `json:"build_timeout"`
	WorkerTimeout float64 `json:"worker_timeout"`
}

const sqlTimeouts = `SELECT value FROM settings WHERE key = 'heartbeat'`

// Timeouts returns the saved time-outs; ok is false if none were ever saved.
func (q *Queue) Timeouts(ctx context.Context) (t store.Timeouts, ok bool, err error) {
	err = q.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var value []byte
		err := c.QueryRow(ctx, sqlTimeouts).Scan(&value)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		var row timeoutsRow
		if err := json.Unmarshal(value, &row); err != nil {
			return err
		}
		ok = true
		t = store.Timeouts{
			CheckInterval: seconds(row.CheckInterval),
			BuildTimeout:  seconds(row.BuildTimeout),
			WorkerTimeout: seconds(row.WorkerTimeout),
		}
		return nil
	})
	if err != nil {
		return store.Timeouts{}, false, fmt.Errorf("reading the time-outs: %w", err)
	}
	return t, ok, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

const sqlSaveTimeouts = `
WITH s AS (
	INSERT INTO settings (key, value) VALUES ('heartbeat', $1)
	ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()
)
SELECT pg_notify('takt', 'settings:changed heartbeat')`

// SaveTimeouts saves t and tells every controller.
func (q *Queue) SaveTimeouts(ctx context.Context, t store.Timeouts) error {
	value, err := json.Marshal(timeoutsRow{
		CheckInterval: t.CheckInterval.Seconds(),
		BuildTimeout:  t.BuildTimeout.Seconds(),
		WorkerTimeout: t.WorkerTimeout.Seconds(),
	})
	if err != nil {
		return fmt.Errorf("encoding the time-outs: %w", err)
	}
	err = q.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sqlSaveTimeouts, value)
		return statementFailure(ctx, err)
	})
	if err != nil {
		return fmt.Errorf("saving the time-outs: %w", err)
	}
	return nil
}
