package takttest

import (
	"bytes"
	"context"
	"encoding/base64"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/store/storetest/needs"
	"takt/store/storetest/pgtest"
)

// NewPostgres returns a server of the test's own, not yet started, and the directory that it
// and what is beside it can read.
func NewPostgres(t *testing.T) (n *pgtest.Node, dir string) {
	t.Helper()
	needs.Postgres(t)
	needs.Linux(t)
	dir, err := os.MkdirTemp("", "takt-postgres-") // t.TempDir is closed to the server's account
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711))
	n, err = pgtest.New(dir)
	require.NoError(t, err)
	require.NoError(t, n.Init())
	return n, dir
}

// Answer is what a server answers to a query.
func Answer(t *testing.T, n *pgtest.Node, sql string) string {
	t.Helper()
	result, err := n.Ask(t.Context(), sql)
	require.NoError(t, err)
	return result
}

// SharedKeys are the settings of controllers that share a database.
func SharedKeys() []string {
	return []string{
		"TAKT_API_KEY=shared-key-0123456789", "TAKT_ADMIN_KEY=shared-admin-0123456789",
		"TAKT_ENCRYPTION_KEY=" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)),
	}
}

// Connect opens a connection to the embedded database of c.
func Connect(t *testing.T, c *process.Controller) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), c.DatabaseURL())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}
