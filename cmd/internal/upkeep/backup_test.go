package upkeep

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/storage"
	"takt/storage/backup"
	"takt/storage/inventory"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// TestFilesThatChangeDuringABackup has the dump name files that are no longer as they were.
func TestFilesThatChangeDuringABackup(t *testing.T) {
	t.Parallel()
	db, data := storetest.New(t), t.TempDir()
	keys := seal.NewRing(seal.Key{})
	local, err := storage.OpenLocal(data, keys)
	require.NoError(t, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	var said strings.Builder
	u := &upkeep{
		Output: cli.Output{Out: &said, Err: &said}, files: files, keys: keys,
		inventory: inventory.Inventory{Rows: postgres.NewFiles(db.DB), Files: files},
	}
	names := []string{"stays", "removed", "replaced", "missing", "damaged"}
	for range names {
		b := storetest.Build(t, db.DB)
		require.NoError(t, os.MkdirAll(filepath.Join(data, "builds", b.ID), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(data, "builds", b.ID, "source.zip"), []byte("source of "+b.ID), 0o600))
	}
	rows, err := u.inventory.Rows.Page(t.Context(), store.FileKey{}, 10)
	require.NoError(t, err)
	require.Len(t, rows, len(names))
	change := func(sql string, args ...any) {
		t.Helper()
		conn, err := pgx.ConnectConfig(t.Context(), db.Config)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(t.Context())) }()
		_, err = conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	remove := func(row store.FileRow) { require.NoError(t, os.Remove(filepath.Join(data, row.Name))) }
	remove(rows[1])
	change(`DELETE FROM build_files WHERE build = $1`, rows[1].Build)
	require.NoError(t, os.WriteFile(filepath.Join(data, rows[2].Name), []byte("other than "+rows[2].BuildID), 0o600))
	change(`UPDATE build_files SET sha256 = sha256('other') WHERE build = $1`, rows[2].Build)
	remove(rows[3])
	require.NoError(t, os.WriteFile(filepath.Join(data, rows[4].Name), []byte("SOURCE OF "+rows[4].BuildID), 0o600))

	dir := backup.Open(t.TempDir())
	require.NoError(t, dir.Begin())
	var m backedUp
	for _, row := range rows {
		require.NoError(t, u.keepFile(t.Context(), dir, row, &m))
	}
	require.EqualValues(t, 1, m.Files)
	require.Equal(t, []string{rows[1].Name, rows[2].Name}, m.Gone)
	require.Equal(t, []string{rows[3].Name, rows[4].Name}, m.Missing)
	require.Contains(t, said.String(), "missing  local "+rows[3].Name)
	require.Contains(t, said.String(), "damaged  local "+rows[4].Name)
	require.Len(t, dir.Find(rows[0]), 1)
}
