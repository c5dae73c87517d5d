package postgres_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

func TestAuditIsListedNewestFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	audit := postgres.NewAudit(b.DB)
	require.Empty(t, listed(audit.List(t.Context(), "", store.Page{}))(t))

	begun := time.Now()
	first := must(audit.Append(t.Context(), store.AuditEntry{
		Actor: "admin@::1", Action: "restart", Target: "takt/database", Reason: "a\x00b", Detail: json.RawMessage(`{"force": true}`),
	}))(t)
	late := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	second := must(audit.Append(t.Context(), store.AuditEntry{At: late, Actor: "x", Action: "heartbeat", Target: "y", Outcome: "done"}))(t)
	require.Greater(t, second, first)

	entries := listed(audit.List(t.Context(), "", store.Page{}))(t)
	require.Len(t, entries, 2)
	require.True(t, late.Equal(entries[0].At))
	require.Equal(t, "done", entries[0].Outcome)
	require.JSONEq(t, `{}`, string(entries[0].Detail))
	require.Equal(t, first, entries[1].ID)
	require.Equal(t, "a\uFFFDb", entries[1].Reason)
	require.JSONEq(t, `{"force":true}`, string(entries[1].Detail))
	require.Empty(t, entries[1].Outcome, "not known yet")
	require.WithinDuration(t, begun, entries[1].At, time.Minute)

	for range 2 {
		require.NoError(t, audit.Conclude(t.Context(), first, "failed"))
	}
	entries = listed(audit.List(t.Context(), "", store.Page{Limit: 1}))(t)
	require.Len(t, entries, 1)
	require.Equal(t, second, entries[0].ID)
	entries = listed(audit.List(t.Context(), "", store.Page{}))(t)
	require.Equal(t, "failed", entries[1].Outcome)
}

func TestAuditWithoutADatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	audit := postgres.NewAudit(postgres.New())
	require.Equal(t, store.Unavailable, codeOf(audit.Append(t.Context(), store.AuditEntry{})))
	require.Equal(t, store.Unavailable, store.CodeOf(audit.Conclude(t.Context(), 1, "")))
	_, _, err := audit.List(t.Context(), "", store.Page{Limit: 1})
	require.Equal(t, store.Unavailable, store.CodeOf(err))
}
