package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Heijunka keeps what operators change of load levelling.
type Heijunka struct{ db *DB }

// NewHeijunka returns a Heijunka on db.
func NewHeijunka(db *DB) *Heijunka { return &Heijunka{db} }

const sqlHeijunkaSettings = `SELECT value FROM settings WHERE key = 'heijunka'`

// HeijunkaSettings returns what was saved; nothing, if nothing ever was.
func (h *Heijunka) HeijunkaSettings(ctx context.Context) (s store.HeijunkaSettings, err error) {
	err = h.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var value []byte
		err := c.QueryRow(ctx, sqlHeijunkaSettings).Scan(&value)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(value, &s)
	})
	if err != nil {
		return store.HeijunkaSettings{}, fmt.Errorf("reading the settings of load levelling: %w", err)
	}
	return s, nil
}

// The row is made first if it is not there, so that two changes at once wait for
// each other.
const sqlLockHeijunkaSettings = `
INSERT INTO settings AS s (key, value) VALUES ('heijunka', '{}')
ON CONFLICT (key) DO UPDATE SET value = s.value
RETURNING value`

const sqlSaveHeijunkaSettings = `
WITH s AS (
	UPDATE settings SET value = $1, updated_at = now() WHERE key = 'heijunka'
)
SELECT pg_notify('takt', 'settings:changed heijunka')`

// ChangeHeijunkaSettings applies change to what is saved and tells every controller.
// An error of change is returned, and nothing is changed.
func (h *Heijunka) ChangeHeijunkaSettings(ctx context.Context, change func(s *store.HeijunkaSettings) error) (s store.HeijunkaSettings, err error) {
	var refused error
	err = h.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var value []byte
		if err := tx.QueryRow(ctx, sqlLockHeijunkaSettings).Scan(&value); err != nil {
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
		_, err = tx.Exec(ctx, sqlSaveHeijunkaSettings, value)
		return err
	})
	switch {
	case refused != nil:
		return store.HeijunkaSettings{}, refused
	case err != nil:
		return store.HeijunkaSettings{}, fmt.Errorf("saving the settings of load levelling: %w", err)
	}
	return s, nil
}
