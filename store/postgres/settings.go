package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const sqlSetting = `/* setting */ SELECT value FROM settings WHERE key = $1`

// setting decodes the value saved under key into value. If none was saved, it leaves value
// unchanged.
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

// Timeouts returns the saved timeouts; ok is false if none were saved yet.
func (q *Queue) Timeouts(ctx context.Context) (t store.Timeouts, ok bool, err error) {
	var row timeoutsRow
	ok, err = q.db.setting(ctx, "heartbeat", &row)
	return store.Timeouts{
		CheckInterval: seconds(row.CheckInterval), BuildTimeout: seconds(row.BuildTimeout), WorkerTimeout: seconds(row.WorkerTimeout),
	}, ok, err
}

const sqlClock = `/* clock */ SELECT clock_timestamp()`

// Clock returns the database's time.
func (q *Queue) Clock(ctx context.Context) (time.Time, error) {
	return valueOf[time.Time](ctx, q.db.read("reading the clock"), sqlClock)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// sqlSaveSetting saves a setting and notifies every controller.
const sqlSaveSetting = `/* save_setting */
WITH s AS (
	INSERT INTO settings (key, value) VALUES ($1, $2)
	ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now()
)
SELECT pg_notify('takt', 'settings:changed ' || $1)`

// SaveTimeouts saves t and notifies every controller.
func (q *Queue) SaveTimeouts(ctx context.Context, t store.Timeouts) error {
	value := timeoutsRow{t.CheckInterval.Seconds(), t.BuildTimeout.Seconds(), t.WorkerTimeout.Seconds()}
	_, err := q.db.write("saving the timeouts").exec(ctx, sqlSaveSetting, "heartbeat", value)
	return err
}

// Heijunka stores the operators' settings of load levelling. Safe for concurrent use.
type Heijunka struct{ db *DB }

// NewHeijunka returns the settings of load levelling in db.
func NewHeijunka(db *DB) *Heijunka { return &Heijunka{db} }

// HeijunkaSettings returns the saved settings, or the zero value if none were saved.
func (h *Heijunka) HeijunkaSettings(ctx context.Context) (s store.HeijunkaSettings, err error) {
	_, err = h.db.setting(ctx, "heijunka", &s)
	return s, err
}

// sqlLockHeijunkaSettings creates the row if it is missing, so that of two concurrent changes
// one always waits for the other.
const sqlLockHeijunkaSettings = `/* lock_heijunka_settings */
INSERT INTO settings AS s (key, value) VALUES ('heijunka', '{}')
ON CONFLICT (key) DO UPDATE SET value = s.value
RETURNING value`

// ChangeHeijunkaSettings applies change to the saved settings, saves and returns them, and
// notifies every controller. If change fails, its error is returned unchanged and nothing is
// saved. change may be called more than once.
func (h *Heijunka) ChangeHeijunkaSettings(ctx context.Context, change func(s *store.HeijunkaSettings) error) (s store.HeijunkaSettings, err error) {
	var refused error
	err = h.db.write("saving the settings of load levelling").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var saved []byte
		if err := tx.QueryRow(ctx, sqlLockHeijunkaSettings).Scan(&saved); err != nil {
			return err
		}
		s = store.HeijunkaSettings{}
		if err := json.Unmarshal(saved, &s); err != nil {
			return err
		}
		if refused = change(&s); refused != nil {
			return refused
		}
		_, err := tx.Exec(ctx, sqlSaveSetting, "heijunka", s)
		return err
	})
	if err = cmp.Or(refused, err); err != nil {
		return store.HeijunkaSettings{}, err
	}
	return s, nil
}
