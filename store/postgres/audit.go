package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Audit is what operators did.
type Audit struct{ db *DB }

// NewAudit returns the audit of db.
func NewAudit(db *DB) *Audit { return &Audit{db: db} }

const sqlAppendAudit = `
INSERT INTO audit (at, actor, action, target, reason, detail, outcome)
VALUES (coalesce($1, now()), $2, $3, $4, $5, coalesce($6, '{}'::jsonb), nullif($7, '')) RETURNING id`

// Append adds an entry and returns its id.
func (a *Audit) Append(ctx context.Context, e store.AuditEntry) (id int64, err error) {
	var at *time.Time
	if !e.At.IsZero() {
		at = &e.At
	}
	err = a.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		err := c.QueryRow(ctx, sqlAppendAudit, at, store.Text(e.Actor), store.Text(e.Action), store.Text(e.Target),
			store.Text(e.Reason), e.Detail, store.Text(e.Outcome)).Scan(&id)
		return statementFailure(ctx, err)
	})
	if err != nil {
		return 0, fmt.Errorf("writing an audit entry: %w", err)
	}
	return id, nil
}

const sqlConcludeAudit = `UPDATE audit SET outcome = $2 WHERE id = $1`

// Conclude writes how the action of an entry ended. Repeating it is harmless.
func (a *Audit) Conclude(ctx context.Context, id int64, outcome string) error {
	err := a.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, sqlConcludeAudit, id, store.Text(outcome))
		return statementFailure(ctx, err)
	})
	if err != nil {
		return fmt.Errorf("writing the outcome of audit entry %d: %w", id, err)
	}
	return nil
}

const sqlListAudit = `
SELECT id, at, actor, action, target, reason, detail, coalesce(outcome, '')
FROM audit ORDER BY id DESC LIMIT nullif($1, 0)`

// List returns up to limit entries, the newest first; limit 0 means all.
func (a *Audit) List(ctx context.Context, limit int) (entries []store.AuditEntry, err error) {
	err = a.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlListAudit, max(limit, 0))
		if err != nil {
			return err
		}
		entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[store.AuditEntry])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing the audit: %w", err)
	}
	return entries, nil
}
