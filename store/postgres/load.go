package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Load keeps what operators change of load levelling.
type Load struct{ db *DB }

// NewLoad returns a Load on db.
func NewLoad(db *DB) *Load { return &Load{db} }

const sqlLoadSettings = `SELECT value FROM settings WHERE key = 'heijunka'`

// LoadSettings returns what was saved; nothing, if nothing ever was.
func (l *Load) LoadSettings(ctx context.Context) (s store.LoadSettings, err error) {
	err = l.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var value []byte
		err := c.QueryRow(ctx, sqlLoadSettings).Scan(&value)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(value, &s)
	})
	if err != nil {
		return store.LoadSettings{}, fmt.Errorf("reading the settings of load levelling: %w", err)
	}
	return s, nil
}

// The row is made first if it is not there, so that two changes at once wait for
// each other.
const sqlLockLoadSettings = `
INSERT INTO settings AS s (key, value) VALUES ('heijunka', '{}')
ON CONFLICT (key) DO UPDATE SET value = s.value
RETURNING value`

const sqlSaveLoadSettings = `
WITH s AS (
	UPDATE settings SET value = $1, updated_at = now() WHERE key = 'heijunka'
)
SELECT pg_notify('takt', 'settings:changed heijunka')`

// ChangeLoadSettings applies change to what is saved and tells every controller.
// An error of change is returned, and nothing is changed.
func (l *Load) ChangeLoadSettings(ctx context.Context, change func(s *store.LoadSettings) error) (s store.LoadSettings, err error) {
	var refused error
	err = l.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var value []byte
		if err := tx.QueryRow(ctx, sqlLockLoadSettings).Scan(&value); err != nil {
			return err
		}
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
		_, err = tx.Exec(ctx, sqlSaveLoadSettings, value)
		return err
	})
	switch {
	case refused != nil:
		return store.LoadSettings{}, refused
	case err != nil:
		return store.LoadSettings{}, fmt.Errorf("saving the settings of load levelling: %w", err)
	}
	return s, nil
}
