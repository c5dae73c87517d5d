package postgres

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// Audit stores the audit: what operators did. Safe for concurrent use.
type Audit struct{ db *DB }

// NewAudit returns the audit of db.
func NewAudit(db *DB) *Audit { return &Audit{db: db} }

const sqlAppendAudit = `/* append_audit */
INSERT INTO audit (at, actor, action, target, reason, detail, outcome)
VALUES (coalesce(@at, now()), @actor, @action, @target, @reason, coalesce(@detail, '{}'::jsonb), nullif(@outcome, '')) RETURNING id`

// Append adds an entry and returns its id.
func (a *Audit) Append(ctx context.Context, e store.AuditEntry) (int64, error) {
	return valueOf[int64](ctx, a.db.write("writing an audit entry"), sqlAppendAudit, auditArgs(e))
}

func auditArgs(e store.AuditEntry) pgx.NamedArgs {
	return pgx.NamedArgs{
		"at": orNull(e.At), "actor": store.Text(e.Actor), "action": store.Text(e.Action), "target": store.Text(e.Target),
		"reason": store.Text(e.Reason), "detail": e.Detail, "outcome": store.ErrorText(e.Outcome),
	}
}

const sqlConcludeAudit = `/* conclude_audit */ UPDATE audit SET outcome = $2 WHERE id = $1`

// Conclude records how the action of an entry ended. Repeating it is harmless.
func (a *Audit) Conclude(ctx context.Context, id int64, outcome string) error {
	_, err := a.db.write("writing the outcome of audit entry "+strconv.FormatInt(id, 10)).exec(ctx, sqlConcludeAudit, id, store.ErrorText(outcome))
	return err
}

// sqlForgetWrongKeys reads only the oldest entries, in the order of the primary key. Controllers of
// earlier releases write the second action.
const sqlForgetWrongKeys = `/* forget_wrong_keys */
DELETE FROM audit WHERE at < now() - interval '90 days' AND id IN (
	SELECT id FROM audit WHERE action IN ('wrong key', 'show wrong key') ORDER BY id LIMIT $1)`

// ForgetWrongKeys removes up to limit entries about wrong keys that are older than 90 days,
// and returns how many. These can be caused by anyone who reaches the server, so they may
// be many; all other entries are kept.
func (f *Files) ForgetWrongKeys(ctx context.Context, limit int) (removed int64, err error) {
	return f.db.write("forgetting wrong keys").exec(ctx, sqlForgetWrongKeys, limit)
}

const sqlListAudit = `/* list_audit */
SELECT id, at, actor, action, target, reason, detail, coalesce(outcome, '') FROM audit
WHERE id < @after AND id >= @until AND (@text = '' OR strpos(lower(actor || ' ' || action || ' ' || target), lower(@text)) > 0)
ORDER BY id DESC OFFSET @skip::int LIMIT @limit::int`

// List returns a page of the entries that contain text in their actor, action or target,
// in any case, newest first. Every entry contains "".
func (a *Audit) List(ctx context.Context, text string, p store.Page) ([]store.AuditEntry, store.Cursor, error) {
	return numberedPage(ctx, a.db.read("listing the audit"), numberedList{"audit", true}, func(e store.AuditEntry) int64 { return e.ID },
		sqlListAudit, p, pgx.NamedArgs{"text": store.Text(text)})
}
