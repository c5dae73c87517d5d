package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"takt/storage/s3test"
	"takt/store"
)

// depot is storage on a disk and an S3 server of its own.
type depot struct {
	*Files
	t      *testing.T
	dir    string
	server *s3test.Server
}

// chunkSize is how much content seal seals at once.
const chunkSize = 64 << 10

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func openDepot(t *testing.T, mode Mode, edit ...func(*S3Config)) *depot {
	t.Helper()
	server := s3test.Start(t)
	cfg := S3Config{
		Endpoint: server.Endpoint, Bucket: s3test.Bucket, Prefix: "some/prefix",
		AccessKey: s3test.AccessKey, SecretKey: s3test.SecretKey,
	}
	for _, e := range edit {
		e(&cfg)
	}
	s3 := must(OpenS3(cfg))(t)
	t.Cleanup(s3.Close)
	local, dir := openLocal(t)
	files := must(NewFiles(mode, local, s3))(t)
	return &depot{Files: files, t: t, dir: dir, server: server}
}

// create has an upload of content, not committed.
func (d *depot) create(name string, content []byte, sealed bool) *Upload {
	d.t.Helper()
	sealFor := ""
	if sealed {
		sealFor = name
	}
	return must(d.Create(d.t.Context(), int64(len(content)), sealFor, bytes.NewReader(content)))(d.t)
}

// keep stores content for good.
func (d *depot) keep(name string, content []byte, sealed bool) (kept store.File) {
	d.t.Helper()
	return must(commit(d.t.Context(), d.create(name, content, sealed), name))(d.t)
}

func (d *depot) read(f store.File, sealed bool) []byte {
	d.t.Helper()
	var r io.ReadCloser
	var err error
	if sealed {
		r, err = d.OpenSealed(d.t.Context(), f)
	} else {
		r, err = d.Open(d.t.Context(), f)
	}
	require.NoError(d.t, err)
	defer func() { require.NoError(d.t, r.Close()) }()
	return must(io.ReadAll(r))(d.t)
}

func (d *depot) object(f store.File) string {
	return filepath.Join(d.server.Dir, "some/prefix", filepath.FromSlash(f.Object))
}

// local lists the files on the disk, temporary ones included.
func (d *depot) local() []string {
	d.t.Helper()
	names := temporaries(d.t, d.dir)
	require.NoError(d.t, d.Walk(d.t.Context(), func(s Stored) error { names = append(names, s.Name); return nil }))
	return names
}

const certsName, sourceName = "builds/abc/certs.zip", "builds/abc/source.zip"

func TestFilesGoWhereTheModeWantsThem(t *testing.T) {
	t.Parallel()
	for mode, want := range map[Mode]store.Location{ModeS3: store.InS3, ModeDual: store.InBoth} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			d := openDepot(t, mode)
			content := randomBytes(3*chunkSize + 7)
			for name, sealed := range map[string]bool{sourceName: false, certsName: true} {
				f := d.keep(name, content, sealed)
				require.Equal(t, want, f.Location)
				require.Equal(t, sha256.Sum256(content), f.SHA256)
				require.True(t, bytes.Equal(content, d.read(f, sealed)))
				raw := must(os.ReadFile(d.object(f)))(t)
				require.Equal(t, sealed, !bytes.Contains(raw, content[:64]), "sealed is sealed in S3, too")
				if mode == ModeDual {
					require.NoError(t, os.Remove(filepath.Join(d.dir, name)))
					require.True(t, bytes.Equal(content, d.read(f, sealed)), "a controller without the local copy reads from S3")
				}
			}
			require.Empty(t, d.local(), "no spool file is left")
			require.NoError(t, d.Health().S3.Err)
			require.True(t, d.Health().OK())
		})
	}
}

func TestEmptyAndOddFilesComeBackFromS3(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	for _, size := range []int{0, 1, chunkSize, chunkSize + 1} {
		content := randomBytes(size)
		require.Len(t, d.read(d.keep(sourceName, content, false), false), size)
		require.True(t, bytes.Equal(content, d.read(d.keep(certsName, content, true), true)), size)
	}
}

func TestObjectsSeek(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	content := randomBytes(300_000)
	f := d.keep(sourceName, content, false)
	o := must(d.Open(t.Context(), f))(t)
	defer o.Close()
	for _, at := range []int64{0, 1, 299_999, 150_000, 150_000} {
		must(o.Seek(at, io.SeekStart))(t)
		got := make([]byte, min(1000, 300_000-at))
		must(io.ReadFull(o, got))(t)
		require.True(t, bytes.Equal(content[at:at+int64(len(got))], got), at)
	}
	_, err := o.Seek(-1, io.SeekStart)
	require.Error(t, err)
	require.NoError(t, iotest.TestReader(io.NewSectionReader(o, 0, 5000), content[:5000]))
}

func TestRefusedUploadsTakeOnlyTheirOwnObjectBack(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	f := d.keep(sourceName, []byte("accepted"), false)
	another := func() *Upload {
		u := d.create(sourceName, []byte("another"), false)
		must(u.Stage(t.Context(), sourceName))(t)
		require.Len(t, d.server.Objects(), 2)
		return u
	}
	another().Abort(t.Context())
	require.Equal(t, []string{"some/prefix/" + f.Object}, d.server.Objects(), "never committed")
	u := another()
	require.NoError(t, u.Commit(t.Context()))
	u.Abort(t.Context())
	require.Equal(t, []string{"some/prefix/" + f.Object}, d.server.Objects(), "rolled back")
	u.Abort(t.Context())
	require.NoError(t, another().Commit(t.Context()))
	require.Len(t, d.server.Objects(), 2, "a row may name it")
	require.Empty(t, d.local())
	require.Equal(t, "accepted", string(d.read(f, false)))
}

func TestHostileNamesReachNoObject(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	for _, name := range []string{"", ".", "..", "../x", "/x", "a/../../x", "a//b", "a/", `..\x`, `a\..\x`} {
		_, err := commit(t.Context(), d.create(sourceName, []byte("x"), false), name)
		require.Error(t, err, name)
		_, err = d.Open(t.Context(), store.File{Name: sourceName, Object: name + "x/..", Location: store.InS3})
		require.Error(t, err, name)
		require.Error(t, d.s3.Remove(t.Context(), name), name)
	}
	require.Empty(t, d.server.Objects())
}

// quick makes S3 be given up soon.
func quick(c *S3Config) { c.StallTimeout, c.RestTime = 300*time.Millisecond, 50*time.Millisecond }

func TestOutageOfS3(t *testing.T) {
	t.Parallel()
	for name, outage := range map[string]func(*s3test.Server){"is gone": (*s3test.Server).Kill, "hangs": (*s3test.Server).Freeze} {
		t.Run("s3 refuses uploads while the server "+name, func(t *testing.T) {
			t.Parallel()
			d := openDepot(t, ModeS3, quick)
			f := d.keep(sourceName, []byte("before"), false)
			outage(d.server)
			_, err := commit(t.Context(), d.create("builds/new/source.zip", []byte("x"), false), "builds/new/source.zip")
			require.Equal(t, store.Unavailable, store.CodeOf(err))
			require.NotContains(t, err.Error(), s3test.SecretKey)
			require.Empty(t, d.local(), "nothing is left behind")
			_, err = d.Open(t.Context(), f)
			require.Equal(t, store.Unavailable, store.CodeOf(err), "that is no missing file")
			require.False(t, d.Health().OK())
		})
		t.Run("dual goes on while the server "+name, func(t *testing.T) {
			t.Parallel()
			d := openDepot(t, ModeDual, quick)
			outage(d.server)
			f := d.keep(sourceName, []byte("precious"), false)
			require.Equal(t, store.OnDisk, f.Location)
			require.True(t, f.CopyPending)
			require.Empty(t, f.Object)
			require.Equal(t, "precious", string(d.read(f, false)))
			require.True(t, d.Health().OK())
			require.Error(t, d.Health().S3.Err)
		})
	}
}

func TestServerKilledInTheMiddleOfAnUpload(t *testing.T) {
	t.Parallel()
	for mode, want := range map[Mode]store.Code{ModeS3: store.Unavailable, ModeDual: ""} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			d := openDepot(t, mode, quick)
			u := d.create(sourceName, make([]byte, 2*partSize), false)
			moves := 0
			u.Moved = func(time.Time) {
				if moves++; moves == 20 {
					d.server.Kill()
				}
			}
			f, err := commit(t.Context(), u, sourceName)
			require.GreaterOrEqual(t, moves, 20)
			require.Equal(t, want, store.CodeOf(err))
			require.Equal(t, mode == ModeDual, f.CopyPending)
			require.Empty(t, f.Object)
			require.Empty(t, d.server.Objects(), "half an object is none")
		})
	}
}

func TestDualDoesNotWaitForASlowS3(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeDual)
	d.patience = 50 * time.Millisecond
	d.server.Freeze()
	require.True(t, d.keep(sourceName, []byte("x"), false).CopyPending)
	begun := time.Now()
	require.True(t, d.keep(certsName, []byte("x"), true).CopyPending)
	require.Less(t, time.Since(begun), d.s3.cfg.StallTimeout)
}

func TestCallersWhoLeaveAreNoOutage(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	u := d.create(sourceName, make([]byte, 2*partSize), false)
	u.Moved = func(time.Time) { cancel(left) }
	_, err := commit(ctx, u, sourceName)
	require.ErrorIs(t, err, left)
	require.NoError(t, d.s3.State().Err)
	require.Empty(t, d.server.Objects())
}

func TestCallersWhoLeaveDoNotWaitForAHangingS3(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	u := d.create(sourceName, make([]byte, 2*partSize), false)
	var leaving time.Time
	u.Moved = func(now time.Time) {
		if leaving.IsZero() {
			leaving = now
			d.server.Freeze()
			cancel(left)
		}
	}
	_, err := commit(ctx, u, sourceName)
	require.ErrorIs(t, err, left)
	require.Less(t, time.Since(leaving), takeBackTimeout)
	d.server.Thaw()
	require.Eventually(t, func() bool { return len(d.s3.sends) == 0 }, time.Minute, 10*time.Millisecond, "its goroutine ends")
}

func TestMissingBucketIsAnOutage(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3, func(c *S3Config) { c.Bucket = "another" })
	err := d.s3.Probe(t.Context())
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.ErrorContains(t, err, "another does not exist")
	_, err = commit(t.Context(), d.create(sourceName, []byte("x"), false), sourceName)
	require.Equal(t, store.Unavailable, store.CodeOf(err))
}

func TestDamagedCopiesAreNotServed(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeDual)
	f := d.keep(sourceName, []byte("precious"), false)
	require.NoError(t, os.WriteFile(filepath.Join(d.dir, sourceName), []byte("preci"), 0o600))
	require.Equal(t, "precious", string(d.read(f, false)), "S3 has it whole")
	require.NoError(t, os.WriteFile(d.object(f), []byte("prec"), 0o600))
	_, err := d.Open(t.Context(), f)
	require.ErrorIs(t, err, ErrDamaged)
	require.NoError(t, os.Remove(d.object(f)))
	require.NoError(t, os.Remove(filepath.Join(d.dir, sourceName)))
	_, err = d.Open(t.Context(), f)
	require.Equal(t, store.NotFound, store.CodeOf(err))
}

func TestReadingGoesOnOverABrokenConnection(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	content := randomBytes(8 << 20)
	f := d.keep(sourceName, content, false)
	o := must(d.Open(t.Context(), f))(t)
	defer o.Close()
	got := make([]byte, len(content))
	must(io.ReadFull(o, got[:1000]))(t)
	d.server.Restart()
	must(io.ReadFull(o, got[1000:]))(t)
	require.True(t, bytes.Equal(content, got))
	d.server.Kill()
	must(o.Seek(0, io.SeekStart))(t)
	_, err := io.ReadFull(o, got)
	require.Equal(t, store.Unavailable, store.CodeOf(err))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

//nolint:paralleltest // it measures the heap of the whole process
func TestLargeFilesNeedLittleMemory(t *testing.T) {
	const size, bound = 200 << 20, 20 << 20
	d := openDepot(t, ModeS3)
	u := must(d.Create(t.Context(), size, "", io.LimitReader(zeros{}, size)))(t)
	moves := 0
	var most uint64
	look := func(time.Time) {
		if moves++; moves%256 == 100 {
			runtime.GC() // what others left is not counted
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
	}
	u.Moved = look
	f := must(commit(t.Context(), u, sourceName))(t)
	o := must(d.Open(t.Context(), f))(t)
	n := must(io.Copy(struct{ io.Writer }{io.Discard}, io.TeeReader(o, progress(look))))(t)
	require.NoError(t, o.Close())
	require.EqualValues(t, size, n)
	require.Greater(t, moves, 256)
	t.Logf("at most %d KiB of heap, %d looks", most>>10, moves)
	require.Less(t, most, uint64(bound), "bytes of heap")
}

// progress is a writer that only watches.
type progress func(time.Time)

func (p progress) Write(b []byte) (int, error) {
	p(time.Now())
	return len(b), nil
}

func TestUploadsThatAKilledTaktBeganAreEnded(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	for range 2 {
		must(d.s3.client.NewMultipartUpload(t.Context(), s3test.Bucket, "some/prefix/builds/abc/source-1.zip", minio.PutObjectOptions{}))(t)
	}
	n := must(d.s3.abortUploads(t.Context(), time.Hour))(t)
	require.Zero(t, n, "they are fresh")
	n = must(d.s3.abortUploads(t.Context(), -time.Minute))(t)
	require.Equal(t, 2, n)
	n = must(d.s3.abortUploads(t.Context(), -time.Minute))(t)
	require.Zero(t, n)
}

func TestWalkShowsWhatIsUnderThePrefix(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3)
	require.NoError(t, os.MkdirAll(filepath.Join(d.server.Dir, "foreign"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(d.server.Dir, "foreign", "x"), []byte("not ours"), 0o600))
	f := d.keep(sourceName, []byte("123"), false)
	var found []Stored
	require.NoError(t, d.s3.walk(t.Context(), func(s Stored) error { found = append(found, s); return nil }))
	require.Len(t, found, 1)
	require.Equal(t, f.Object, found[0].Name)
	require.EqualValues(t, 3, found[0].Size)
	require.WithinDuration(t, time.Now(), found[0].ModTime, time.Minute)
}

func TestS3SettingsAreChecked(t *testing.T) {
	t.Parallel()
	good := S3Config{Endpoint: "https://s3.example.com", Bucket: "b", AccessKey: "a", SecretKey: "s"}
	require.NoError(t, good.Validate())
	for fault, spoil := range map[string]func(*S3Config){
		"s3-endpoint":   func(c *S3Config) { c.Endpoint = "s3.example.com" },
		"URL":           func(c *S3Config) { c.Endpoint = "https://user:pass@s3.example.com" },
		"server":        func(c *S3Config) { c.Endpoint = "https://s3.example.com/bucket" },
		"s3-bucket":     func(c *S3Config) { c.Bucket = "" },
		"s3-prefix":     func(c *S3Config) { c.Prefix = "../x" },
		"s3-path-style": func(c *S3Config) { c.PathStyle = "maybe" },
		"s3-access-key": func(c *S3Config) { c.AccessKey = "" },
		"s3-secret-key": func(c *S3Config) { c.SecretKey = "" },
	} {
		c := good
		spoil(&c)
		require.ErrorContains(t, c.Validate(), fault)
		_, err := OpenS3(c)
		require.Error(t, err)
	}
	_, err := NewFiles("tape", nil, nil)
	require.ErrorContains(t, err, "tape")
	_, err = NewFiles(ModeDual, nil, nil)
	require.ErrorContains(t, err, "needs S3")
}

func TestObjectKeysAreNeverTheSame(t *testing.T) {
	t.Parallel()
	a, b := objectKey(sourceName), objectKey(sourceName)
	require.NotEqual(t, a, b)
	require.True(t, strings.HasPrefix(a, "builds/abc/source-") && strings.HasSuffix(a, ".zip"), a)
}
