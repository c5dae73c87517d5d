package dashboard

import (
	"context"
	"strings"
)

func (d *Dashboard) loadAudit(ctx context.Context, v *view) (any, error) {
	entries, next, err := d.deps.Audit.List(ctx, strings.TrimSpace(v.Get("q")), v.rows("after"))
	return listOf(v, "after", entries, next), err
}
