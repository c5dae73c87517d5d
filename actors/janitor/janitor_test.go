package janitor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/otp/otptest"
	"takt/storage"
	"takt/storage/s3test"
	"takt/store"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

// fixture is a janitor with a real database, disk and, unless files are only local, S3 server.
type fixture struct {
	*storetest.Database
	t       *testing.T
	dir     string
	server  *s3test.Server
	files   *storage.Files
	builds  *postgres.Builds
	sys     *otp.System
	janitor *Janitor
}

func open(t *testing.T, mode storage.Mode, edit ...func(*Janitor)) *fixture {
	t.Helper()
	h := &fixture{t: t, dir: t.TempDir()}
	var s3 *storage.S3
	if mode != storage.ModeLocal {
		h.server = s3test.Start(t)
		s3 = must(storage.OpenS3(storage.S3Config{
			Endpoint: h.server.Endpoint, Bucket: s3test.Bucket, AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
			StallTimeout: time.Second, RestTime: 10 * time.Millisecond,
		}))(t)
	}
	h.Database = storetest.New(t)
	local := must(storage.OpenLocal(h.dir, seal.NewRing(seal.Key{})))(t)
	h.files = must(storage.NewFiles(mode, local, s3))(t)
	t.Cleanup(func() { require.NoError(t, h.files.Close()) })
	h.builds = postgres.NewBuilds(h.DB, postgres.BuildsConfig{})
	h.sys = otp.New(otp.Options{Logger: zerolog.New(t.Output())})
	h.janitor = New(h.sys, postgres.NewFiles(h.DB), h.files, Retention{})
	h.janitor.copyInterval, h.janitor.maxBackoff = 20*time.Millisecond, 50*time.Millisecond
	for _, e := range edit {
		e(h.janitor)
	}
	must(h.sys.StartRoot(t.Context(), "takt", otp.SupSpec{Intensity: 1000, Children: []otp.ChildSpec{h.janitor.Spec()}}))(t)
	t.Cleanup(func() {
		h.sys.Shutdown(context.Background())
		require.Zero(t, h.sys.Leaked())
	})
	return h
}

// submit stores a build whose source has this content.
func (h *fixture) submit(content string) store.Build {
	h.t.Helper()
	id := store.NewID()
	sub := store.Submission{ID: id, Platform: store.IOS, TokenHash: store.HashToken(id)}
	u, f := h.stage("builds/"+id+"/source.zip", content)
	sub.Source = f
	return must(h.builds.Submit(h.t.Context(), sub, u))(h.t)
}

// stage stores a file that has no row yet.
func (h *fixture) stage(name, content string) (*storage.Upload, store.File) {
	h.t.Helper()
	u := must(h.files.Create(h.t.Context(), 1<<20, "", strings.NewReader(content)))(h.t)
	f := must(u.Stage(h.t.Context(), name))(h.t)
	return u, f
}

// finish gives a build a result.
func (h *fixture) finish(id, content string) {
	h.t.Helper()
	w := storetest.Worker(h.t, h.DB)
	u, f := h.stage("builds/"+id+"/result.ipa", content)
	must(h.builds.Finish(h.t.Context(), store.Result{BuildID: id, WorkerID: w.ID, Success: true, File: &f}, u))(h.t)
}

// report stores a diagnostic report.
func (h *fixture) report() store.File {
	h.t.Helper()
	w := storetest.Worker(h.t, h.DB)
	r := store.DiagnosticReport{ID: w.ID, WorkerID: w.ID, Status: store.Critical, RunAt: time.Now(), Checks: []byte("[]")}
	u, f := h.stage("diagnostics/"+w.ID+"/1.json", "{}")
	r.File = f
	require.NoError(h.t, postgres.NewWorkers(h.DB).Report(h.t.Context(), r, u))
	return f
}

func (h *fixture) find(id string) store.Build {
	h.t.Helper()
	return must(h.builds.Find(h.t.Context(), id))(h.t)
}

func (h *fixture) read(f *store.File) string {
	h.t.Helper()
	file := must(h.files.Open(h.t.Context(), *f))(h.t)
	defer file.Close()
	b := must(io.ReadAll(file))(h.t)
	return string(b)
}

// lies puts something on the disk or into the bucket that nobody named, and
// says how old it is.
func (h *fixture) lies(dir, name string, age time.Duration) {
	h.t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		require.NoError(h.t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(h.t, os.WriteFile(path, []byte("left behind"), 0o600))
	}
	at := time.Now().Add(-age)
	require.NoError(h.t, os.Chtimes(path, at, at))
}

// count is what a metric shows.
func (h *fixture) count(m prometheus.Metric) int {
	h.t.Helper()
	var shown dto.Metric
	require.NoError(h.t, m.Write(&shown))
	return int(shown.GetCounter().GetValue() + shown.GetGauge().GetValue())
}

func (h *fixture) counted(metrics ...prometheus.Metric) (counts []int) {
	h.t.Helper()
	for _, m := range metrics {
		counts = append(counts, h.count(m))
	}
	return counts
}

func (h *fixture) onDisk() []string {
	h.t.Helper()
	var names []string
	require.NoError(h.t, filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			name, _ := filepath.Rel(h.dir, path)
			names = append(names, name)
		}
		return err
	}))
	return names
}

const long, short = 25 * time.Hour, 23 * time.Hour

func TestOnlyOldThingsThatNobodyNamesAreRemoved(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual)
	build := h.submit("precious")
	named := []string{build.Source.Name, build.Source.Object}
	h.lies(h.dir, build.Source.Name, long)
	h.lies(h.server.Dir, build.Source.Object, long)
	for _, dir := range []string{h.dir, h.server.Dir} {
		h.lies(dir, "builds/"+build.ID+"/result.ipa", long)
		h.lies(dir, "builds/gone/source.zip", long)
		h.lies(dir, "builds/deep/er/source.zip", long)
		h.lies(dir, "builds/fresh/source.zip", short)
	}
	// Reports are named by rows of their own.
	report := h.report()
	h.lies(h.dir, report.Name, long)
	h.lies(h.server.Dir, report.Object, long)
	h.lies(h.dir, "diagnostics/gone/1.json", long)
	h.lies(h.server.Dir, "diagnostics/gone/1.json", long)
	h.lies(h.dir, "tmp/old.part", long)
	h.lies(h.dir, "tmp/fresh.part", short)

	require.NoError(t, h.janitor.Sweep(t.Context()))

	require.ElementsMatch(t, []string{named[0], report.Name, "builds/fresh/source.zip", "tmp/fresh.part"}, h.onDisk())
	require.ElementsMatch(t, []string{named[1], report.Object, "builds/fresh/source.zip"}, h.server.Objects())
	require.Equal(t, "precious", h.read(build.Source))
	figures := h.janitor.figures
	require.Equal(t, []int{8, 1, 0}, h.counted(figures.orphans, figures.temporary, figures.failures))

	// A directory is kept for as long: somebody may be about to use it.
	require.DirExists(t, filepath.Join(h.dir, "builds/gone"))
	h.lies(h.dir, "builds/gone", long)
	require.NoError(t, h.janitor.Sweep(t.Context()))
	require.NoDirExists(t, filepath.Join(h.dir, "builds/gone"))
}

func TestAnUploadThatIsUnderWayIsNotEnded(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual)
	s3 := must(minio.NewCore(strings.TrimPrefix(h.server.Endpoint, "http://"), &minio.Options{Creds: credentials.NewStaticV4(s3test.AccessKey, s3test.SecretKey, "")}))(t)
	upload := must(s3.NewMultipartUpload(t.Context(), s3test.Bucket, "builds/some/result.ipa", minio.PutObjectOptions{}))(t)
	require.NoError(t, h.janitor.Sweep(t.Context()))
	must(s3.ListObjectParts(t.Context(), s3test.Bucket, "builds/some/result.ipa", upload, 0, 1))(t)
}

func TestAFileThatGotAYoungerOneInItsPlaceStays(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeLocal)
	h.lies(h.dir, "builds/some/result.ipa", short)
	require.NoError(t, h.janitor.removeOrphan(t.Context(), "builds/some/result.ipa", false))
	require.Equal(t, []string{"builds/some/result.ipa"}, h.onDisk())
	require.NoError(t, h.janitor.removeOrphan(t.Context(), "builds/none/result.ipa", false))
	require.Zero(t, h.count(h.janitor.figures.orphans))
}

func TestS3GetsWhatItIsOwed(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual)
	node := func() otp.Node { return h.sys.Tree(true)[0].Children[0] }
	h.server.Kill()
	var builds []store.Build
	for _, content := range []string{"one", "two", "three"} {
		b := h.submit(content)
		require.True(t, b.Source.CopyPending)
		builds = append(builds, b)
	}
	h.until("the janitor waits for S3", func() bool { return node().Status == otp.StatusSuspended })
	require.NotContains(t, node().Detail, h.server.Endpoint)
	require.Zero(t, node().Restarts, "an outage is no crash")

	// One of the three can't be copied, and keeps no other from its turn.
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, builds[0].Source.Name), []byte("???"), 0o600))
	h.server.Restart()
	for _, b := range builds[1:] {
		h.until("the copy is there", func() bool { return h.find(b.ID).Source.Location == store.InBoth })
		source := h.find(b.ID).Source
		require.False(t, source.CopyPending)
		must(h.files.Remove(source.Name))(t)
		require.Contains(t, []string{"two", "three"}, h.read(source))
	}
	h.until("the janitor goes on", func() bool { return node().Status == otp.StatusRunning && h.count(h.janitor.figures.copyFailures) > 0 })
	require.True(t, h.find(builds[0].ID).Source.CopyPending)
	require.Equal(t, 2, h.count(h.janitor.figures.copied))
	h.until("one copy is pending", func() bool { return h.count(h.janitor.figures.pendingCopies) == 1 })
	require.Len(t, h.server.Objects(), 2)
}

func (h *fixture) until(what string, cond func() bool) {
	h.t.Helper()
	require.Eventually(h.t, cond, time.Minute, 5*time.Millisecond, what)
}

func TestCopiesOfOtherControllersAreTheirs(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual)
	storetest.Build(t, h.DB, func(s *store.Submission) { s.Source.CopyPending = true })
	h.until("one copy is pending", func() bool { return h.count(h.janitor.figures.pendingCopies) == 1 })
	require.Equal(t, []int{0, 0}, h.counted(h.janitor.figures.copyFailures, h.janitor.figures.copied))
}

func TestRetention(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual, func(j *Janitor) { j.keep = Retention{Source: long, Result: 2 * long, Logs: long, Diagnostics: long} })
	old, older, running := h.submit("old"), h.submit("older"), h.submit("running")
	for _, b := range []store.Build{old, older} {
		h.finish(b.ID, "result")
	}
	for id, age := range map[string]time.Duration{old.ID: long, older.ID: 2 * long} {
		must(h.Pool.Exec(t.Context(), `UPDATE builds SET completed_at = now() - $2::interval - interval '1s' WHERE id = $1`, id, age))(t)
	}
	must(h.Pool.Exec(t.Context(), `UPDATE builds SET submitted_at = now() - interval '90 days'`))(t)

	h.report()
	must(h.Pool.Exec(t.Context(), `UPDATE diagnostic_reports SET created_at = now() - interval '26h'`))(t)
	fresh := h.report()

	require.NoError(t, h.janitor.Sweep(t.Context()))

	require.Nil(t, h.find(old.ID).Source)
	require.NotNil(t, h.find(old.ID).Result)
	require.Nil(t, h.find(older.ID).Source)
	require.Nil(t, h.find(older.ID).Result)
	require.Equal(t, "running", h.read(h.find(running.ID).Source))
	require.ElementsMatch(t, []string{running.Source.Name, h.find(old.ID).Result.Name, fresh.Name}, h.onDisk())
	require.Len(t, h.server.Objects(), 3)
	require.Empty(t, must(h.builds.Tail(t.Context(), old.ID, 0, 1))(t).Lines)
	f := h.janitor.figures
	require.Equal(t, []int{2, 0, 1, 2, 1}, h.counted(f.sources, f.certs, f.results, f.logs, f.diagnostics))
}

func TestChoresAreLeftToWhoDidThemLast(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual)
	require.NoError(t, h.janitor.Sweep(t.Context()))
	h.lies(h.server.Dir, "builds/gone/source.zip", long)
	h.lies(h.dir, "builds/gone/source.zip", long)
	require.NoError(t, h.janitor.Sweep(t.Context()))
	require.Len(t, h.server.Objects(), 1)
	require.Empty(t, h.onDisk(), "each sweeps its own disk")
}

func TestCrashLosesNothing(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeDual)
	h.server.Kill()
	b := h.submit("precious")
	h.lies(h.dir, "builds/gone/source.zip", long)
	p := h.sys.Whereis(name)
	for range 5 {
		otptest.Crash(t, p, errors.New("crashed"))
		p = otptest.Restarted(t, h.sys, p)
	}
	h.server.Restart()
	h.until("the round is made", func() bool { return h.janitor.Sweep(t.Context()) == nil })
	require.Equal(t, []string{b.Source.Name}, h.onDisk())
	h.until("the copy is there", func() bool { return h.find(b.ID).Source.Location == store.InBoth })
	raw := must(os.ReadFile(filepath.Join(h.server.Dir, filepath.FromSlash(h.find(b.ID).Source.Object))))(t)
	require.True(t, bytes.Equal([]byte("precious"), raw))
}

func TestWithoutADatabaseItWaits(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeLocal, func(j *Janitor) { j.maxBackoff = 50 * time.Millisecond })
	status := func() otp.Status { return h.sys.Tree(true)[0].Children[0].Status }
	h.DB.Drop(errors.New("away"))
	require.Equal(t, store.Unavailable, store.CodeOf(h.janitor.Sweep(t.Context())))
	h.until("it waits", func() bool { return status() == otp.StatusSuspended }) // it tries again from time to time
	h.DB.Use(h.Pool)
	h.until("the round is made again", func() bool { return status() == otp.StatusRunning })
}

func TestExpiredIdempotencyKeysAreForgotten(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeLocal, func(j *Janitor) { j.interval = 50 * time.Millisecond })
	must(h.Pool.Exec(t.Context(), `INSERT INTO idempotency_keys (key, content, build, reply, created_at)
		SELECT sha256(n::text::bytea), sha256(''), 'b', '', now() - CASE n WHEN 1 THEN interval '1 hour' ELSE interval '26 hours' END
		FROM generate_series(1, 1200) n`))(t)
	require.Eventually(t, func() bool {
		var n int
		err := h.Pool.QueryRow(t.Context(), `SELECT count(*) FROM idempotency_keys`).Scan(&n)
		return err == nil && n == 1
	}, time.Minute, 10*time.Millisecond)
}

// What strangers write into the audit is forgotten, also of the release before; what operators did is kept.
func TestOldWrongKeysAreForgotten(t *testing.T) {
	t.Parallel()
	h := open(t, storage.ModeLocal, func(j *Janitor) { j.interval = 50 * time.Millisecond })
	must(h.Pool.Exec(t.Context(), `INSERT INTO audit (at, actor, action, target, reason)
		SELECT now() - CASE WHEN n IN (1198, 1199) THEN interval '89 days' ELSE interval '91 days' END, 'unknown client@x', CASE n WHEN 1200 THEN 'deploy' WHEN 1198 THEN 'show wrong key' WHEN 1 THEN 'show wrong key' ELSE 'wrong key' END, '', ''
		FROM generate_series(1, 1200) n`))(t)
	left := func() (wrong, others int) {
		require.NoError(t, h.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE action IN ('wrong key', 'show wrong key')), count(*) FILTER (WHERE action = 'deploy') FROM audit`).Scan(&wrong, &others))
		return wrong, others
	}
	require.Eventually(t, func() bool { wrong, _ := left(); return wrong == 2 }, time.Minute, 10*time.Millisecond)
	_, others := left()
	require.Equal(t, 1, others)
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
