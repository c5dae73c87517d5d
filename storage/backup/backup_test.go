package backup_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/storage"
	"takt/storage/backup"
	"takt/storage/inventory"
	"takt/store"
	"takt/store/seal"
)

// disk is a storage with its keys.
type disk struct {
	*storage.Files
	t    *testing.T
	keys *seal.Ring
}

func open(t *testing.T, dir string, current seal.Key, old ...seal.Key) disk {
	t.Helper()
	keys := seal.NewRing(current, old...)
	local, err := storage.OpenLocal(dir, keys)
	require.NoError(t, err)
	files, err := storage.NewFiles(storage.ModeLocal, local, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	return disk{files, t, keys}
}

// add stores a file.
func (d disk) add(kind store.FileKind, content string) store.FileRow {
	d.t.Helper()
	id := store.NewID()
	row := store.FileRow{FileKey: store.FileKey{Build: 1, Kind: kind}, BuildID: id}
	name, sealFor := "builds/"+id+"/"+string(kind)+".zip", ""
	if row.Sealed() {
		sealFor = name
	}
	u, err := d.Create(d.t.Context(), 1000, sealFor, strings.NewReader(content))
	require.NoError(d.t, err)
	row.File, err = u.Stage(d.t.Context(), name)
	require.NoError(d.t, err)
	require.NoError(d.t, u.Commit(d.t.Context()))
	return row
}

// back makes a backup whose dump names rows, and returns how many bytes it copied.
func (d disk) back(dir *backup.Dir, name string, rows ...store.FileRow) (copied int64) {
	d.t.Helper()
	require.NoError(d.t, dir.Begin())
	m := backup.Manifest{Name: name}
	require.NoError(d.t, dir.Dump(&m, func(w io.Writer) error {
		text := "CREATE SCHEMA public;\nCOPY public.build_files (kind, build, name, size, sha256, location, object) FROM stdin;\n"
		for _, r := range rows {
			text += fmt.Sprintf("%s\t%d\t%s\t%d\t\\\\x%x\t%s\t\\N\n", r.Kind, r.Build, r.Name, r.Size, r.SHA256, r.Location)
		}
		_, err := io.WriteString(w, text+"\\.\n")
		return err
	}))
	_, err := dir.Rows(m, func(row store.FileRow) error {
		n, err := dir.Keep(d.t.Context(), d.Files, d.keys.Current(), row)
		copied += n
		return err
	})
	require.NoError(d.t, err)
	require.NoError(d.t, dir.Finish(m))
	return copied
}

func TestFilesAreKeptOnceAndPruned(t *testing.T) {
	t.Parallel()
	at, data := t.TempDir(), t.TempDir()
	dir := backup.Open(at)
	oldKey, newKey := seal.Key{1}, seal.Key{2}
	before := open(t, data, oldKey)
	source, same, certs := before.add("source", "a source"), before.add("source", "a source"), before.add(store.CertsFile, "certificates")
	require.Positive(t, before.back(dir, "1", source, same, certs))
	require.Zero(t, before.back(dir, "2", source, same, certs))
	require.Equal(t, dir.Find(source), dir.Find(same))
	require.Len(t, dir.Find(certs), 1)

	// A certificate that was sealed anew is kept as well, because the old key may go.
	after := open(t, data, newKey, oldKey)
	require.NoError(t, after.Reseal(t.Context(), certs, false))
	other := after.add("source", "another source")
	require.Equal(t, storage.StoredSize(certs)+other.Size, after.back(dir, "3", other, certs))
	require.Zero(t, after.back(dir, "4", other, certs))
	for key, want := range map[seal.Key]int{oldKey: 1, newKey: 1, {3}: 0} {
		opened, to := 0, open(t, t.TempDir(), key)
		for _, path := range dir.Find(certs) {
			f, err := os.Open(path)
			require.NoError(t, err)
			if err := to.Restore(t.Context(), certs, "", f); err == nil {
				opened++
			} else {
				require.ErrorIs(t, err, storage.ErrDamaged)
			}
			require.NoError(t, f.Close())
		}
		require.Equal(t, want, opened, key)
	}

	removed, err := dir.Prune(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 2, removed)
	require.Empty(t, dir.Find(source), "no backup names it any more")
	require.Len(t, dir.Find(other), 1)
	sum, err := dir.Verify(t.Context(), func(f inventory.Finding) { t.Error(f) })
	require.NoError(t, err)
	require.EqualValues(t, 2, sum.Backups)
	require.EqualValues(t, 3, sum.Files)
	left, err := filepath.Glob(filepath.Join(at, "*.*"))
	require.NoError(t, err)
	require.Len(t, left, 4, "dumps and manifests")

	require.NoError(t, os.Remove(dir.Find(certs)[0]))
	require.NoError(t, os.Remove(dir.Find(certs)[0]))
	missing := 0
	_, err = dir.Verify(t.Context(), func(f inventory.Finding) {
		require.Equal(t, inventory.Missing, f.Problem)
		missing++
	})
	require.NoError(t, err)
	require.Equal(t, 2, missing, "of both backups")
}
