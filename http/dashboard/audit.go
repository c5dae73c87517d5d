package dashboard

import (
	"context"
	"strconv"
	"strings"

	"takt/http/edge"
	"takt/store"
)

// auditData is the data of the audit page.
type auditData struct {
	Rows []store.AuditEntry
	Next string
}

func (d *Dashboard) loadAudit(ctx context.Context, v *view) (any, error) {
	before, err := edge.Sequence("before", v.Get("before"))
	if err != nil {
		return nil, err
	}
	entries, err := d.deps.Store.Audit(ctx, store.AuditFilter{Text: store.Text(strings.TrimSpace(v.Get("q"))), Before: before, Limit: pageRows + 1})
	if err != nil {
		return nil, err
	}
	data := auditData{}
	if len(entries) > pageRows {
		entries = entries[:pageRows]
		data.Next = v.With("before", strconv.FormatInt(entries[pageRows-1].ID, 10))
	}
	data.Rows = entries
	return data, nil
}
