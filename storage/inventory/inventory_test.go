package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/storage"
	"takt/storage/inventory"
	"takt/storage/s3test"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// fixture is a database, a disk and an S3 server with files in them.
type fixture struct {
	*storetest.Database
	t      *testing.T
	dir    string
	server *s3test.Server
	local  *storage.Local
	s3     *storage.S3
	rows   *postgres.Files
	inventory.Inventory
}

func open(t *testing.T) *fixture {
	t.Helper()
	h := &fixture{Database: storetest.New(t), t: t, dir: t.TempDir(), server: s3test.Start(t)}
	var err error
	h.s3, err = storage.OpenS3(storage.S3Config{
		Endpoint: h.server.Endpoint, Bucket: s3test.Bucket, AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
		StallTimeout: time.Second, RestTime: 10 * time.Millisecond,
	})
	require.NoError(t, err)
	h.local, err = storage.OpenLocal(h.dir, seal.NewRing(seal.Key{}))
	require.NoError(t, err)
	h.rows = postgres.NewFiles(h.DB)
	files := h.files(storage.ModeLocal)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	h.Inventory = inventory.Inventory{Rows: h.rows, Files: files}
	return h
}

func (h *fixture) files(mode storage.Mode) *storage.Files {
	h.t.Helper()
	f, err := storage.NewFiles(mode, h.local, h.s3)
	require.NoError(h.t, err)
	return f
}

// submit stores builds with a source and sealed certs each.
func (h *fixture) submit(mode storage.Mode, n int) {
	h.t.Helper()
	files := h.files(mode)
	for i := range n {
		id := store.NewID()
		sub := store.Submission{ID: id, Platform: store.IOS, TokenHash: store.HashToken(id)}
		certsName := "builds/" + id + "/certs.zip"
		source, err := files.Create(h.t.Context(), 1000, "", strings.NewReader(fmt.Sprint("source ", i)))
		require.NoError(h.t, err)
		sealed, err := files.Create(h.t.Context(), 1000, certsName, strings.NewReader(fmt.Sprint("certs ", i)))
		require.NoError(h.t, err)
		sub.Source, err = source.Stage(h.t.Context(), "builds/"+id+"/source.zip")
		require.NoError(h.t, err)
		certs, err := sealed.Stage(h.t.Context(), certsName)
		require.NoError(h.t, err)
		sub.Certs = &certs
		_, err = postgres.NewBuilds(h.DB, postgres.BuildsConfig{}).Submit(h.t.Context(), sub, source, sealed)
		require.NoError(h.t, err)
	}
}

// all returns every row; each has to be at location.
func (h *fixture) all(location store.Location) []store.FileRow {
	h.t.Helper()
	rows, err := h.rows.Page(h.t.Context(), store.FileKey{}, 1000)
	require.NoError(h.t, err)
	for _, r := range rows {
		require.Equal(h.t, location, r.Location)
	}
	return rows
}

func (h *fixture) verify(o inventory.VerifyOptions) (inventory.Verified, map[string]inventory.Problem) {
	h.t.Helper()
	found := map[string]inventory.Problem{}
	sum, err := h.Verify(h.t.Context(), o, func(f inventory.Finding) { found[string(f.Location)+" "+f.Name] = f.Problem })
	require.NoError(h.t, err)
	return sum, found
}

func (h *fixture) migrate(to storage.Mode, prune bool) inventory.Migrated {
	h.t.Helper()
	sum, err := h.Migrate(h.t.Context(), inventory.MigrateOptions{To: to, Prune: prune}, func(f inventory.Finding) {
		h.t.Errorf("unexpected: %+v", f)
	})
	require.NoError(h.t, err)
	_, found := h.verify(inventory.VerifyOptions{Digest: true})
	require.Empty(h.t, found)
	return sum
}

// overwrite changes what lies in storage behind everybody's back.
func (h *fixture) overwrite(path, content string) {
	h.t.Helper()
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o600))
}

func TestVerifyFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.submit(storage.ModeDual, 4)
	sum, found := h.verify(inventory.VerifyOptions{Digest: true})
	require.Empty(t, found)
	require.EqualValues(t, 8, sum.Files)

	rows := h.all(store.InBoth) // certs and source of each build
	disk := func(i int) string { return filepath.Join(h.dir, rows[i].Name) }
	object := func(i int) string { return filepath.Join(h.server.Dir, filepath.FromSlash(rows[i].Object)) }
	require.NoError(t, os.Remove(disk(1)))
	require.NoError(t, os.Remove(object(3)))
	h.overwrite(disk(5), "short")
	h.overwrite(object(7), "Source 3") // the right size
	raw, err := os.ReadFile(object(0))
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1
	h.overwrite(object(0), string(raw)) // certs: sealed
	want := map[string]inventory.Problem{
		"local " + rows[1].Name: inventory.Missing,
		"s3 " + rows[3].Object:  inventory.Missing,
		"local " + rows[5].Name: inventory.Damaged,
	}
	sum, found = h.verify(inventory.VerifyOptions{})
	require.Equal(t, want, found, "without reading them all")
	require.Equal(t, []int64{2, 1, 0}, []int64{sum.Missing, sum.Damaged, sum.Unnamed})
	want["s3 "+rows[7].Object], want["s3 "+rows[0].Object] = inventory.Damaged, inventory.Damaged
	_, found = h.verify(inventory.VerifyOptions{Digest: true})
	require.Equal(t, want, found)

	_, found = h.verify(inventory.VerifyOptions{AnyCopy: true})
	require.Empty(t, found, "there is a good copy of each")
	require.NoError(t, os.Remove(object(1)))
	_, found = h.verify(inventory.VerifyOptions{AnyCopy: true})
	require.Len(t, found, 2)
}

func TestVerifyTellsOfWhatNobodyNames(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.submit(storage.ModeDual, 1)
	past := time.Now().Add(-2 * time.Hour)
	for _, dir := range []string{h.dir, h.server.Dir} {
		for name, old := range map[string]bool{"old": true, "fresh": false} {
			path := filepath.Join(dir, "builds", name, "source.zip")
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			h.overwrite(path, "x")
			if old {
				require.NoError(t, os.Chtimes(path, past, past))
			}
		}
	}
	sum, found := h.verify(inventory.VerifyOptions{})
	require.Equal(t, map[string]inventory.Problem{
		"local builds/old/source.zip": inventory.Unnamed, "s3 builds/old/source.zip": inventory.Unnamed,
	}, found)
	require.EqualValues(t, 2, sum.Unnamed)
}

func TestVerifyWithoutS3SaysSo(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.submit(storage.ModeS3, 1)
	h.server.Kill()
	_, err := h.Verify(t.Context(), inventory.VerifyOptions{}, func(f inventory.Finding) { t.Errorf("unexpected: %+v", f) })
	require.Equal(t, store.Unavailable, store.CodeOf(err), "S3 being away is no missing file")
}

func TestMigrateThereAndBack(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.submit(storage.ModeLocal, 3)
	var last, most int64
	h.Progress = func(done, total int64) { last, most = done, total }
	require.EqualValues(t, 6, h.migrate(storage.ModeDual, false).Copied)
	require.Equal(t, most, last)
	require.Positive(t, last)
	h.all(store.InBoth)
	require.Zero(t, h.migrate(storage.ModeDual, false).Copied, "again")
	require.EqualValues(t, 6, h.migrate(storage.ModeS3, true).Pruned)
	h.all(store.InS3)
	require.NoError(t, h.local.Walk(t.Context(), func(s storage.Stored) error { return errors.New(s.Name) }))
	require.EqualValues(t, 6, h.migrate(storage.ModeLocal, false).Copied)
	h.all(store.InBoth)
	require.EqualValues(t, 6, h.migrate(storage.ModeLocal, true).Pruned)
	h.all(store.OnDisk)
	require.Empty(t, h.server.Objects())
}

func TestMigratePassesOverWhatIsDamaged(t *testing.T) {
	t.Parallel()
	for mode, to := range map[storage.Mode]storage.Mode{storage.ModeLocal: storage.ModeS3, storage.ModeS3: storage.ModeLocal} {
		t.Run("to "+string(to), func(t *testing.T) {
			t.Parallel()
			h := open(t)
			h.submit(mode, 3)
			rows, err := h.rows.Page(t.Context(), store.FileKey{}, 10)
			require.NoError(t, err)
			path := func(i int) string {
				if mode == storage.ModeS3 {
					return filepath.Join(h.server.Dir, filepath.FromSlash(rows[i].Object))
				}
				return filepath.Join(h.dir, rows[i].Name)
			}
			h.overwrite(path(1), "Source 0")
			require.NoError(t, os.Remove(path(2)))
			var problems []inventory.Problem
			sum, err := h.Migrate(t.Context(), inventory.MigrateOptions{To: to}, func(f inventory.Finding) { problems = append(problems, f.Problem) })
			require.NoError(t, err)
			require.Equal(t, []inventory.Problem{inventory.Damaged, inventory.Missing}, problems)
			require.EqualValues(t, 2, sum.Failed)
			require.EqualValues(t, 4, sum.Copied)
			bad, err := h.rows.Find(t.Context(), rows[1].FileKey)
			require.NoError(t, err)
			require.Equal(t, rows[1], bad, "damage does not spread")
		})
	}
}

func TestPruningKeepsTheOnlyGoodCopy(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.submit(storage.ModeDual, 1)
	rows := h.all(store.InBoth)
	h.overwrite(filepath.Join(h.server.Dir, filepath.FromSlash(rows[1].Object)), "Source 0")
	sum, err := h.Migrate(t.Context(), inventory.MigrateOptions{To: storage.ModeS3, Prune: true}, func(f inventory.Finding) {
		require.Equal(t, inventory.Damaged, f.Problem)
		require.Equal(t, rows[1].Object, f.Name)
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, sum.Failed)
	require.EqualValues(t, 1, sum.Pruned)
	require.FileExists(t, filepath.Join(h.dir, rows[1].Name))
}

func TestMigrationThatIsCutShortGoesOn(t *testing.T) {
	t.Parallel()
	for _, to := range []storage.Mode{storage.ModeS3, storage.ModeLocal} {
		t.Run("to "+string(to), func(t *testing.T) {
			t.Parallel()
			h := open(t)
			h.submit(map[storage.Mode]storage.Mode{storage.ModeS3: storage.ModeLocal, storage.ModeLocal: storage.ModeS3}[to], 4)
			cut, stop := context.WithCancelCause(t.Context())
			h.Progress = func(int64, int64) { stop(errors.New("that will do")) }
			sum, err := h.Migrate(cut, inventory.MigrateOptions{To: to, Prune: true}, func(inventory.Finding) {})
			require.ErrorContains(t, err, "that will do")
			require.EqualValues(t, 1, sum.Copied)
			_, found := h.verify(inventory.VerifyOptions{Digest: true})
			require.Empty(t, found, "half-way there all is well, too")
			h.Progress = nil
			require.EqualValues(t, 7, h.migrate(to, true).Copied)
		})
	}
}

func TestMigrateLosesARaceGracefully(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.submit(storage.ModeLocal, 1)
	rows := h.all(store.OnDisk)
	// Somebody else brings the files to S3 while Migrate copies them.
	racing := racingRows{Files: h.rows, t: t}
	_, err := inventory.Inventory{Rows: racing, Files: h.Files}.Migrate(t.Context(), inventory.MigrateOptions{To: storage.ModeS3}, func(f inventory.Finding) {
		t.Errorf("unexpected: %+v", f)
	})
	require.NoError(t, err)
	require.Empty(t, h.server.Objects(), "the loser takes its object back")
	for _, r := range rows {
		now, err := h.rows.Find(t.Context(), r.FileKey)
		require.NoError(t, err)
		require.Equal(t, "theirs "+string(r.Kind), now.Object)
	}
}

type racingRows struct {
	*postgres.Files
	t *testing.T
}

func (r racingRows) Move(ctx context.Context, from store.FileRow, location store.Location, object string) (bool, error) {
	moved, err := r.Files.Move(ctx, from, store.InBoth, "theirs "+string(from.Kind))
	require.NoError(r.t, err)
	require.True(r.t, moved)
	return r.Files.Move(ctx, from, location, object)
}
