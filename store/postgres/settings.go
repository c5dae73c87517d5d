package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const sqlSetting = `/* setting */ SELECT value FROM settings WHERE key = $1`

// setting reads the value saved under key into value. If none was saved, it leaves
// value unchanged.
func (db *DB) setting(ctx context.Context, key string, value any) (found bool, err error) {
	err = db.read("reading the setting "+key).run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var saved []byte
		err := orNone(c.QueryRow(ctx, sqlSetting, key).Scan(&saved), nil)
		if found = err == nil && saved != nil; !found {
			return err
		}
		return json.Unmarshal(saved, value)
	})
	return found, err
}

// timeoutsRow is the stored form of store.Timeouts, in seconds.
type timeoutsRow struct {
	CheckInterval float64 `json:"check_interval"`
	BuildTimeout  float64 `json:"build_timeout"`
	WorkerTimeout float64 `json:"worker_timeout"`
}

// Timeouts returns the saved timeouts; ok is false if none were ever saved.
func (q *Queue) Timeouts(ctx context.Context) (t store.Timeouts, ok bool, err error) {
	var row timeoutsRow
	ok, err = q.db.setting(ctx, "heartbeat", &row)
	return store.Timeouts{
		CheckInterval: seconds(row.CheckInterval), BuildTimeout: seconds(row.BuildTimeout), WorkerTimeout: seconds(row.WorkerTimeout),
	}, ok, err
}

const sqlClock = `/* clock */ SELECT clock_timestamp()`

// Clock returns the database's time.
func (q *Queue) Clock(ctx context.Context) (now time.Time, err error) {
	err = q.db.read("reading the clock").scan(ctx, nil, []any{&now}, sqlClock)
	return now, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

const sqlSaveTimeouts = `/* save_timeouts */
WITH s AS (
	INSERT INTO settings (key, value) VALUES ('heartbeat', $1)
	ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()
)
SELECT pg_notify('takt', 'settings:changed heartbeat')`

// SaveTimeouts saves t and notifies every controller.
func (q *Queue) SaveTimeouts(ctx context.Context, t store.Timeouts) error {
	value, err := json.Marshal(timeoutsRow{t.CheckInterval.Seconds(), t.BuildTimeout.Seconds(), t.WorkerTimeout.Seconds()})
	if err != nil {
		return fmt.Errorf("encoding the timeouts: %w", err)
	}
	_, err = q.db.write("saving the timeouts").exec(ctx, sqlSaveTimeouts, value)
	return err
}

// Heijunka keeps the operators' settings of load levelling.
type Heijunka struct{ db *DB }

// NewHeijunka returns a Heijunka on db.
func NewHeijunka(db *DB) *Heijunka { return &Heijunka{db} }

// HeijunkaSettings returns the saved settings, or the zero value if none were saved.
func (h *Heijunka) HeijunkaSettings(ctx context.Context) (s store.HeijunkaSettings, err error) {
	_, err = h.db.setting(ctx, "heijunka", &s)
	return s, err
}

// The row is created first if it is missing, so that two concurrent changes wait for
// each other.
const sqlLockHeijunkaSettings = `/* lock_heijunka_settings */
INSERT INTO settings AS s (key, value) VALUES ('heijunka', '{}')
ON CONFLICT (key) DO UPDATE SET value = s.value
RETURNING value`

const sqlSaveHeijunkaSettings = `/* save_heijunka_settings */
WITH s AS (
	UPDATE settings SET value = $1, updated_at = now() WHERE key = 'heijunka'
)
SELECT pg_notify('takt', 'settings:changed heijunka')`

// ChangeHeijunkaSettings applies change to the saved settings and notifies every
// controller. If change fails, its error is returned unchanged and nothing is saved.
func (h *Heijunka) ChangeHeijunkaSettings(ctx context.Context, change func(s *store.HeijunkaSettings) error) (s store.HeijunkaSettings, err error) {
	var refused error
	err = h.db.write("saving the settings of load levelling").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var value []byte
		if err := tx.QueryRow(ctx, sqlLockHeijunkaSettings).Scan(&value); err != nil {
			return err
		}
		s = store.HeijunkaSettings{}
		if err := json.Unmarshal(value, &s); err != nil {
			return err
		}
		if refused = change(&s); refused != nil {
			return refused
		}
		value, err := json.Marshal(s)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlSaveHeijunkaSettings, value)
		return err
	})
	switch {
	case refused != nil:
		return store.HeijunkaSettings{}, refused
	case err != nil:
		return store.HeijunkaSettings{}, err
	}
	return s, nil
}
