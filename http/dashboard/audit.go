package dashboard

import (
	"context"
	"strings"

	"takt/store"
)

// auditData is the data of the audit page.
type auditData struct {
	Rows []store.AuditEntry
	Next string
}

func (d *Dashboard) loadAudit(ctx context.Context, v *view) (any, error) {
	entries, next, err := d.deps.Audit.List(ctx, strings.TrimSpace(v.Get("q")), v.rows("after"))
	return auditData{Rows: entries, Next: v.next("after", next)}, err
}
