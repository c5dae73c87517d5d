package recovery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/actors/database"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/storage/backup"
	"takt/storage/s3test"
	"takt/store"
	"takt/store/storetest/needs"
)

// trickyOrder is certifiedOrder with a log that looks like a dump.
const trickyOrder = `printf '%s\n' '\.' 'COPY public.build_files (build) FROM stdin;' '\N	tab' && ` + certifiedOrder

// account is what a controller knows about builds.
type account struct {
	status api.BuildStatus
	logs   []string
	result string
}

func accountOf(t *testing.T, c *process.Controller, id string) (a account) {
	t.Helper()
	a.status = takttest.Status(t, c, id)
	logs, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	a.logs = takttest.Messages(logs)
	if a.status.Status == string(store.Completed) {
		a.result = takttest.Download(t, c, id)
	}
	return a
}

// reportsIn returns the contents of the diagnostic reports' files in a storage, in order.
func reportsIn(t *testing.T, storage string) (contents []string) {
	t.Helper()
	for _, path := range pathsIn(filepath.Join(storage, "diagnostics")) {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		contents = append(contents, string(raw))
	}
	slices.Sort(contents)
	return contents
}

// TestABackupBringsBackALostMachine loses database, files and keys' directory.
func TestABackupBringsBackALostMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		external          bool
		storage, restored string
	}{
		"embedded and local to external and s3": {false, "local", "s3"},
		"external and s3 to embedded and dual":  {true, "s3", "dual"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needs.S3(t)
			env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1})
			key := []string{"TAKT_ENCRYPTION_KEY=" + takttest.NewKey()}
			place := func(external bool, mode string) (settings []string, bucket *s3test.Server) {
				settings = slices.Concat(key, env.HubSpot.Env(env.Base), []string{"TAKT_PUBLIC_URL=" + takttest.PublicURL, "TAKT_STORAGE=" + mode})
				if external {
					settings = append(settings, "TAKT_DATABASE_URL="+externalDatabase(t))
				}
				if mode != "local" {
					bucket = s3test.Start(t)
					settings = append(settings, bucket.Env()...)
				}
				return settings, bucket
			}
			settings, bucket := place(c.external, c.storage)
			old := env.StartController("old", settings...)
			settings = append(settings, "TAKT_DATA_DIR="+old.DataDir)
			dir := filepath.Join(env.Dir, "backups")

			env.Install(old, api.ThrottleConfig{MaxThroughput: 1, TimePeriod: 1, TimeUnit: "day"}, takttest.Portal)
			for n := range 4 {
				require.True(t, env.Fire(t.Context(), old.URL, takttest.Portal, fmt.Sprint("action ", n)))
			}
			w, err := env.Worker(old, "android", trickyOrder, nil, "--platform", "android")
			require.NoError(t, err)
			var builds []certified
			before := map[string]account{}
			for n := range 6 {
				b, ok := submitCertified(t.Context(), t, old.URL, old.APIKey, []store.Platform{store.Android, store.IOS}[n%2], n)
				require.True(t, ok)
				builds = append(builds, b)
				if n%2 == 0 {
					takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, old, b.id).Status == string(store.Completed) })
				}
			}
			for _, b := range builds {
				before[b.id] = accountOf(t, old, b.id)
			}
			require.NoError(t, w.Stop(t.Context(), takttest.Patience))
			queues, err := old.Client.ThrottleQueues(t.Context(), 0, 0)
			require.NoError(t, err)
			ill, err := old.Client.Register(t.Context(), api.Register{Name: "ill", Capabilities: json.RawMessage(`{"platforms":["ios"]}`)})
			require.NoError(t, err)
			for n := range 2 {
				takttest.Call(t, old, api.ReportDiagnostics, api.PostDiagnostic{
					WorkerID: ill.ID, Status: string(store.Warning), RunAt: 1_750_000_000_123, DurationMS: int64(n), AutoFixed: n == 1,
					Checks: []api.DiagnosticCheck{{Name: "disk <&>", Status: "warn", Message: "two\tlines\n\\. \u00e9", Details: json.RawMessage(`{"free": [1, 2.50]}`)}},
				})
			}
			stored := filepath.Join(old.DataDir, "files")
			if bucket != nil {
				stored = bucket.Dir
			}
			reports := reportsIn(t, stored)
			require.GreaterOrEqual(t, len(reports), 2)

			// Beside a takt that serves; the second one copies only what is new.
			first := env.MustRun(settings, "backup", dir)
			require.Contains(t, first, "15 files of ")
			require.Contains(t, first, "of which 15 (")
			require.Contains(t, first, "keep it in another safe place")
			late, ok := submitCertified(t.Context(), t, old.URL, old.APIKey, store.IOS, 7)
			require.True(t, ok)
			before[late.id] = accountOf(t, old, late.id)
			require.Contains(t, env.MustRun(settings, "backup", dir), "17 files of ")
			third := env.MustRun(settings, "backup", dir, "--keep", "2")
			require.Contains(t, third, "of which 0 (0 B)")
			require.Contains(t, env.MustRun(nil, "backup", "verify", dir), "2 backups, 17 files of ")
			sealed := 0
			require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				require.NoError(t, err)
				if d.Type().IsRegular() {
					raw, err := os.ReadFile(path)
					require.NoError(t, err)
					require.Zero(t, strings.Count(string(raw), strings.TrimPrefix(key[0], "TAKT_ENCRYPTION_KEY=")), path)
					if strings.HasPrefix(string(raw), "tkt\x01") {
						sealed++
					}
				}
				return nil
			}))
			require.Equal(t, 7, sealed, "certificates")

			// A worker that the backup does not know has the number that the next one gets.
			ghost, err := old.Client.Register(t.Context(), api.Register{Name: "ghost", Capabilities: json.RawMessage(`{"platforms":["ios"]}`)})
			require.NoError(t, err)

			old.Kill()
			takttest.Eventually(t, "directory is removed", func() bool { return os.RemoveAll(old.DataDir) == nil }) // PostgreSQL's processes end after it
			if bucket != nil {
				bucket.Kill()
			}
			settings, bucket = place(!c.external, c.restored)
			env.MustRun(append(settings, "TAKT_DATA_DIR="+filepath.Join(env.Dir, "new")), "restore", dir)
			if stored = filepath.Join(env.Dir, "new", "files"); c.restored == "s3" {
				stored = bucket.Dir
			}
			require.Equal(t, reports, reportsIn(t, stored))
			now := env.StartController("new", settings...)
			next, err := now.Client.Register(t.Context(), api.Register{Name: "next", Capabilities: json.RawMessage(`{"platforms":["ios"]}`)})
			require.NoError(t, err)
			_, err = now.Client.Poll(t.Context(), client.Poll{Token: ghost.AccessToken})
			require.Equal(t, store.InvalidToken, store.CodeOf(err), "a token from before opens nobody's session")
			_, err = now.Client.Unregister(t.Context(), next.AccessToken)
			require.NoError(t, err)

			for id, was := range before {
				require.Equal(t, was, accountOf(t, now, id))
			}
			again, err := now.Client.ThrottleQueues(t.Context(), 0, 0)
			require.NoError(t, err)
			require.Equal(t, queues.Queues[0].Depth, again.Queues[0].Depth)
			require.Positive(t, again.Queues[0].Depth)
			takttest.Call(t, now, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{
				PortalID: takttest.Portal, ActionID: 7, MaxThroughput: 1000, TimePeriod: 1, TimeUnit: "second",
			}})
			takttest.Eventually(t, "all actions are completed", func() bool { return env.HubSpot.Distinct() == 4 })
			env.StartWorker(now, "ios", certifiedOrder)
			for _, b := range append(builds, late) {
				takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, now, b.id).Status == string(store.Completed) })
				require.Equal(t, b.want, takttest.Download(t, now, b.id))
			}
			if c.restored == "dual" {
				takttest.Eventually(t, "S3 gets its copies", func() bool { return len(bucket.Objects()) >= 17 })
			}
			code, found, _ := storage(env.Env, now, settings, "verify", "--digest")
			require.Zero(t, code, found)
			entries, err := now.Client.Audit(t.Context(), 0)
			require.NoError(t, err)
			require.True(t, slices.ContainsFunc(entries.Entries, func(e api.AuditEntry) bool { return e.Action == "restore" }))
		})
	}
}

// blockLoad keeps whoever fills the empty database at url from its tables, and waits until
// somebody tries. It returns after work has been called then, and the database is free again.
func blockLoad(t *testing.T, url string, work func(reached func())) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `CREATE TABLE workers ()`)
	require.NoError(t, err)
	work(func() {
		takttest.Eventually(t, "somebody waits for the table", func() bool {
			waits := false
			err := tx.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid')`).Scan(&waits)
			return err == nil && waits
		})
	})
	require.NoError(t, tx.Rollback(t.Context()))
}

// pathsIn lists the files below a directory.
func pathsIn(dir string) (paths []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error { // it may change meanwhile
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

// filesIn counts the files below a directory.
func filesIn(dir string) int { return len(pathsIn(dir)) }

// killed starts a command, kills it once there are files below dir, and returns when it has
// ended.
func killed(env *takttest.Env, dir string, settings []string, args ...string) {
	env.T.Helper()
	p, err := env.Launch("killed", settings, args...)
	require.NoError(env.T, err)
	for p.Alive() && filesIn(dir) == 0 {
	}
	p.Kill()
	require.Equal(env.T, -1, p.ExitCode(), "it was killed in the middle of it, and said%s", p.Tail())
}

func TestBackupsAndRestoresThatWereKilledOrDamaged(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	old := env.StartController("old")
	settings := []string{"TAKT_DATA_DIR=" + old.DataDir}
	dir := filepath.Join(env.Dir, "backups")
	const builds = 200
	for n := range builds {
		takttest.Submit(t, old, fmt.Appendf(nil, "order %d", n))
	}
	worker, err := old.Client.Register(t.Context(), api.Register{Name: "holds one", Capabilities: json.RawMessage(`{}`)})
	require.NoError(t, err)
	held, err := old.Client.Poll(t.Context(), client.Poll{Token: worker.AccessToken})
	require.NoError(t, err)
	require.NotNil(t, held.Job)

	killed(env, filepath.Join(dir, "files"), settings, "backup", dir)
	env.MustFail("holds no complete backup", nil, "backup", "verify", dir)
	copied := filesIn(filepath.Join(dir, "files"))
	require.Less(t, copied, builds)
	require.Contains(t, env.MustRun(settings, "backup", dir), fmt.Sprintf("200 files of 1.7 KiB, of which %d (", builds-copied))
	require.Contains(t, env.MustRun(nil, "backup", "verify", dir), "1 backups, 200 files of 1.7 KiB: 0 missing, 0 damaged")
	left, err := filepath.Glob(filepath.Join(dir, ".unfinished-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	dumps, err := filepath.Glob(filepath.Join(dir, "*.sql.gz"))
	require.NoError(t, err)
	require.Len(t, dumps, 1)

	// A restore refuses a takt that runs, and what is in the way.
	env.MustFail("stop takt serve first", settings, "restore", dir)
	key := "TAKT_ENCRYPTION_KEY=" + process.ReadWord(filepath.Join(old.DataDir, "encryption-key"))
	require.NoError(t, old.Stop(t.Context(), takttest.Patience))
	env.MustFail("the database is not empty", settings, "restore", dir)
	code, output := env.Run([]string{"TAKT_DATA_DIR=" + filepath.Join(env.Dir, "no key")}, "restore", dir)
	require.Equal(t, 2, code)
	require.Contains(t, output, "the encryption key of the backup's time is needed")
	url := externalDatabase(t)
	target := []string{"TAKT_DATA_DIR=" + filepath.Join(env.Dir, "new"), "TAKT_DATABASE_URL=" + url}
	env.MustFail("this database was sealed with the encryption key", append(target, "TAKT_ENCRYPTION_KEY="+takttest.NewKey()), "restore", dir)
	target = append(target, key)

	// Killed while it brings files, and while it fills the database.
	killed(env, filepath.Join(env.Dir, "new", "files", "builds"), target, "restore", dir)
	blockLoad(t, url, func(reached func()) {
		p, err := env.Launch("victim", target, "restore", dir)
		require.NoError(t, err)
		reached()
		p.Kill()
	})

	// A damaged file, and a dump that was cut.
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte("order 0"))) // of the build that is held
	some := filepath.Join(dir, "files", digest[:2], digest)
	good, err := os.ReadFile(some)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(some, []byte(strings.ToUpper(string(good))), 0o600))
	env.MustFail("damaged  backup", nil, "backup", "verify", dir)
	require.NoError(t, os.Remove(some))
	env.MustFail("missing  backup", nil, "backup", "verify", dir)
	env.MustFail("1 files of the backup are missing or damaged", target, "restore", dir)
	require.NoError(t, os.WriteFile(some, good, 0o600))
	dump, err := os.ReadFile(dumps[0])
	require.NoError(t, err)
	for _, size := range []int{len(dump) / 2, len(dump) - 1, 0} {
		require.NoError(t, os.WriteFile(dumps[0], dump[:size], 0o600))
		env.MustFail("1 dumps or files are missing or damaged", nil, "backup", "verify", dir)
		env.MustFail("not what was stored", target, "restore", dir, "--partial")
	}
	require.NoError(t, os.WriteFile(dumps[0], dump, 0o600))
	env.MustRun(nil, "backup", "verify", dir)
	require.NoError(t, os.Remove(some))

	require.Contains(t, env.MustRun(target, "restore", dir, "--partial"), "199 files of ")
	now := env.StartController("new", target[1:]...)
	all, err := now.Client.List(t.Context(), client.Filter{Limit: 1000})
	require.NoError(t, err)
	require.Len(t, all, builds)
	failed, err := now.Client.List(t.Context(), client.Filter{Status: "failed"})
	require.NoError(t, err)
	require.Len(t, failed, 1, "the build whose source is lost")
	require.Equal(t, held.Job.ID, failed[0].ID)
	invariants := takttest.Call(t, now, api.CheckInvariants, api.None{})
	for _, i := range invariants.Invariants {
		require.Zero(t, i.Broken, i.Promise)
	}
	code, found, _ := storage(env, now, target, "verify", "--digest")
	require.Zero(t, code, found)
}

// TestTheDatabaseMoves moves an embedded database to an external one.
func TestTheDatabaseMoves(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	old := env.StartController("takt")
	settings := []string{"TAKT_DATA_DIR=" + old.DataDir}
	url := externalDatabase(t)
	installation := func(url string) (id string) {
		t.Helper()
		db, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(t.Context())) }()
		require.NoError(t, db.QueryRow(t.Context(), `SELECT value #>> '{}' FROM settings WHERE key = 'installation'`).Scan(&id))
		return id
	}
	id := installation(old.DatabaseURL())
	env.StartWorker(old, "android", trickyOrder)
	b, ok := submitCertified(t.Context(), t, old.URL, old.APIKey, store.Android, 1)
	require.True(t, ok)
	takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, old, b.id).Status == string(store.Completed) })
	before := accountOf(t, old, b.id)

	env.MustFail("stop takt serve first", settings, "database", "move", url)
	require.NoError(t, old.Stop(t.Context(), takttest.Patience))
	source := filepath.Join(old.DataDir, "files", "builds", b.id, "source.zip")
	require.NoError(t, os.Rename(source, source+".away"))
	env.MustFail("nothing was moved", settings, "database", "move", url)
	require.NoError(t, os.Rename(source+".away", source))
	blockLoad(t, url, func(reached func()) {
		p, err := env.Launch("victim", settings, "database", "move", url)
		require.NoError(t, err)
		reached()
		p.Kill()
	})
	require.NoError(t, env.StartController("takt").Stop(t.Context(), takttest.Patience), "an interrupted move changes nothing")

	require.NoError(t, database.MarkMoved(old.DataDir, "a place where it never came to")) // as if killed right before the end
	require.Contains(t, env.MustRun(settings, "database", "move", url), "the database was moved to ")
	env.MustRun(settings, "database", "move", url) // as if killed right after it
	env.MustFail("this database was moved to ", append(settings, "TAKT_LISTEN=127.0.0.1:0"), "serve")
	env.MustFail("this database was moved to ", settings, "storage", "verify")

	external := []string{"TAKT_DATABASE_URL=" + url, "TAKT_ENCRYPTION_KEY=" + process.ReadWord(filepath.Join(old.DataDir, "encryption-key"))}
	now := env.StartController("takt", external...)
	require.Equal(t, id, installation(url), "workers' tokens go on")
	require.Equal(t, before, accountOf(t, now, b.id))
	settings = append(settings, external...)
	env.MustFail("stop takt serve first", settings, "database", "renew-id")
	elsewhere := slices.Concat([]string{"TAKT_DATA_DIR=" + t.TempDir()}, external)
	env.MustFail("1 controllers use this database", elsewhere, "database", "renew-id")
	require.NoError(t, now.Stop(t.Context(), takttest.Patience))
	env.MustRun(elsewhere, "database", "renew-id")
	require.NotEqual(t, id, installation(url))

	// After a failover the same server would be a former primary.
	env.MustRun(settings, "storage", "verify")
	noted := filepath.Join(old.DataDir, "timelines")
	raw, err := os.ReadFile(noted)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(noted, []byte(strings.Replace(string(raw), `"00000001"`, `"00000002"`, 1)), 0o600))
	code, output := env.Run(settings, "storage", "verify")
	require.Equal(t, 5, code)
	require.Contains(t, output, "it was the primary before a failover")
}

// A restore leaves keys revoked that were revoked after the backup, as far as a newer backup or the
// database that is replaced knows, and ends enrolment tokens; and it names the others.
func TestARestoreRevivesNoKeyThatItKnowsToBeRevoked(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	source := externalDatabase(t)
	key := takttest.NewKey()
	old := env.StartController("old", "TAKT_DATABASE_URL="+source, "TAKT_ENCRYPTION_KEY="+key)
	settings := []string{"TAKT_DATA_DIR=" + old.DataDir, "TAKT_DATABASE_URL=" + source, "TAKT_ENCRYPTION_KEY=" + key}
	call := func(c *process.Controller, args ...string) string {
		return strings.TrimSpace(env.MustRun([]string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey, "TAKT_ADMIN_KEY=" + c.AdminKey}, append([]string{"keys"}, args...)...))
	}
	for _, name := range []string{"early", "late", "kept"} {
		call(old, "create", name, "--scope", "read")
	}
	call(old, "enroll")
	dir := filepath.Join(env.Dir, "backups")
	env.MustRun(settings, "backup", dir)
	call(old, "revoke", "early")
	env.MustRun(settings, "backup", dir)
	call(old, "revoke", "late")
	require.NoError(t, old.Stop(t.Context(), takttest.Patience))
	list, err := backup.Open(dir).List()
	require.NoError(t, err)

	restore := func(more ...string) string {
		target := []string{"TAKT_DATA_DIR=" + filepath.Join(t.TempDir(), "new"), "TAKT_DATABASE_URL=" + externalDatabase(t), settings[2]}
		return env.MustRun(target, append([]string{"restore", dir, "--backup", list[0].Name}, more...)...)
	}
	text := restore()
	require.Regexp(t, `stay revoked, and enrolment tokens that end: (early, enroll-\w+|enroll-\w+, early)\n`, text)
	require.Contains(t, text, "keys that are valid: kept, late\n")
	require.Contains(t, text, "revoke again what was revoked since")
	text = restore("--replaced", source)
	require.Contains(t, text, "keys that are valid: kept\n")
	require.NotContains(t, text, "revoke again what was revoked since")
	text = restore("--revive-keys")
	require.Regexp(t, `keys that are valid: early, enroll-\w+, kept, late\n`, text)

	newer, err := os.OpenFile(filepath.Join(dir, list[1].Name+".sql.gz"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = newer.WriteAt([]byte("damaged"), 100)
	require.NoError(t, errors.Join(err, newer.Close()))
	text = restore("--replaced", source)
	require.Contains(t, text, "a newer backup can't be read, so keys that were revoked before it may be valid again: backup "+list[1].Name)
	require.Contains(t, text, "keys that are valid: kept\n", "the database that is replaced knows the others")
}
