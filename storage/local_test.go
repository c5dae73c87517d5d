package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/seal"
	"takt/store/storetest/needs"
)

func openLocal(tb testing.TB) (local *Local, dir string) {
	tb.Helper()
	dir = filepath.Join(tb.TempDir(), "files")
	l := must(OpenLocal(dir, seal.NewRing(seal.Key{7})))(tb)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l, dir
}

func temporaries(tb testing.TB, dir string) []string {
	tb.Helper()
	entries := must(os.ReadDir(filepath.Join(dir, temporaryDir)))(tb)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// commit makes u the file called name.
func commit(ctx context.Context, u *Upload, name string) (store.File, error) {
	defer u.Discard()
	f, err := u.Stage(ctx, name)
	if err == nil {
		err = u.Commit(ctx)
	}
	return f, err
}

// commitLocal is commit in a transaction that stands.
func commitLocal(tb testing.TB, u *Upload, name string) {
	tb.Helper()
	must(commit(tb.Context(), u, name))(tb)
}

// put stores content as the file called name.
func put(tb testing.TB, l *Local, name string, content []byte) {
	tb.Helper()
	u := must(l.Create(tb.Context(), int64(len(content)), "", bytes.NewReader(content)))(tb)
	commitLocal(tb, u, name)
}

func TestUploadIsCommittedWithSizeAndDigest(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	content := bytes.Repeat([]byte("takt!"), 300_000)
	// Odd pieces, as a multipart part gives them.
	u := must(l.Create(t.Context(), int64(len(content)), "", iotest.HalfReader(bytes.NewReader(content))))(t)
	require.Equal(t, int64(len(content)), u.Size)
	require.Equal(t, sha256.Sum256(content), u.SHA256)
	require.Len(t, temporaries(t, dir), 1)

	commitLocal(t, u, "builds/abc/source.zip")
	u.Discard()
	u.Discard()
	require.Empty(t, temporaries(t, dir))

	f := must(l.Open("builds/abc/source.zip"))(t)
	got := must(io.ReadAll(f))(t)
	require.NoError(t, f.Close())
	require.Equal(t, u.Size, f.Size)
	require.True(t, bytes.Equal(content, got))
}

// A file of a new build has its name from the beginning, and its directory goes with it.
func TestNewFileIsWrittenUnderItsName(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	files := must(NewFiles(ModeLocal, l, nil))(t)
	const source, certs = "builds/abc/source.zip", "builds/abc/certs.zip"
	create := func(name string, seal bool) *Upload {
		u := must(files.CreateNew(t.Context(), name, 10, seal, strings.NewReader(name[7:10])))(t)
		require.FileExists(t, filepath.Join(dir, name))
		return u
	}
	_, err := files.CreateNew(t.Context(), source, 10, false, strings.NewReader("longer than ten bytes"))
	require.Equal(t, store.TooLarge, store.CodeOf(err))
	require.NoDirExists(t, filepath.Join(dir, "builds/abc"))

	s, c := create(source, false), create(certs, true)
	s.Discard()
	require.NoFileExists(t, filepath.Join(dir, source))
	commitLocal(t, c, certs)
	c.Discard()
	sealed := must(files.OpenSealed(t.Context(), store.File{Name: certs, Size: 3, SHA256: sha256.Sum256([]byte("abc")), Location: store.OnDisk}))(t)
	got, err := io.ReadAll(sealed)
	require.NoError(t, errors.Join(err, sealed.Close()))
	require.Equal(t, "abc", string(got))
	require.Empty(t, temporaries(t, dir))
	_, err = files.CreateNew(t.Context(), "../out", 10, false, strings.NewReader(""))
	require.Error(t, err)
}

func TestFilesAreClosedToOthers(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	put(t, l, "builds/abc/source.zip", nil)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		require.Zero(t, must(d.Info())(t).Mode().Perm()&0o077, d.Name())
		return nil
	})
	require.NoError(t, err)
}

func TestUploadOverItsLimitLeavesNothing(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	for _, size := range []int{11, copyBuffer + 1, 3 * copyBuffer} {
		_, err := l.Create(t.Context(), 10, "", bytes.NewReader(make([]byte, size)))
		require.Equal(t, store.TooLarge, store.CodeOf(err))
	}
	require.Empty(t, temporaries(t, dir))
	_, err := l.Open("builds/abc/source.zip")
	require.Equal(t, store.NotFound, store.CodeOf(err))
}

func TestUploadWhoseSourceBreaksOffFails(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	for _, cause := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET} {
		_, err := l.Create(t.Context(), 1000, "", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(cause)))
		require.ErrorIs(t, err, cause)
	}
	require.Empty(t, temporaries(t, dir))
}

func TestUploadIsCommittedOnce(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	const name = "builds/abc/x"
	create := func() *Upload { return must(l.Create(t.Context(), 10, "", strings.NewReader("x")))(t) }
	u := create()
	require.Error(t, u.Commit(t.Context()), "not staged")
	commitLocal(t, u, name)
	require.NoError(t, u.Commit(t.Context()), "again")
	_, err := u.Stage(t.Context(), name)
	require.Error(t, err, "committed")
	u.Abort(t.Context())
	_, err = l.Open(name)
	require.NoError(t, err, "the name may belong to another upload")
	u = create()
	require.Error(t, u.Rename(), "not staged")
	must(u.Stage(t.Context(), "builds/def/x"))(t)
	require.DirExists(t, filepath.Join(dir, "builds", "def"), "made before any lock is held")
	require.NoError(t, os.Remove(filepath.Join(dir, "builds", "def")), "as the janitor does")
	for range 2 {
		require.NoError(t, u.Rename())
		require.FileExists(t, filepath.Join(dir, "builds", "def", "x"))
	}
	u.Abort(t.Context())
	require.FileExists(t, filepath.Join(dir, "builds", "def", "x"), "renamed, so the name may belong to another upload")
	require.Error(t, u.Commit(t.Context()), "aborted")
	u = create()
	must(u.Stage(t.Context(), "builds/def/x"))(t)
	require.NoError(t, u.Rename())
	require.NoError(t, u.Commit(t.Context()))
	require.NoError(t, u.Rename(), "again")
	for what, end := range map[string]func(*Upload){"discarded": (*Upload).Discard, "aborted": func(u *Upload) { u.Abort(t.Context()) }} {
		u = create()
		must(u.Stage(t.Context(), name))(t)
		end(u)
		require.Error(t, u.Commit(t.Context()), what)
		_, err = u.Stage(t.Context(), name)
		require.Error(t, err, what)
	}
	require.Empty(t, temporaries(t, dir))
}

// A new build's files are its own, so nothing stays of them.
func TestFilesOfANewBuildAreAborted(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	files, old := stored(t, l, "builds/old/source.zip", []byte("content"))
	for what, create := range map[string]func() (*Upload, error){
		"new": func() (*Upload, error) {
			return files.CreateNew(t.Context(), "builds/new/source.zip", 10, false, strings.NewReader("x"))
		},
		"duplicate": func() (*Upload, error) { return files.Duplicate(t.Context(), old, "") },
		"copy":      func() (*Upload, error) { return files.copyOf(t.Context(), old, "") },
	} {
		u, err := create()
		require.NoError(t, err, what)
		commitLocal(t, u, "builds/new/source.zip")
		u.Abort(t.Context())
		u.Abort(t.Context())
		require.NoDirExists(t, filepath.Join(dir, "builds", "new"), what)
	}
	require.Equal(t, "content", string(content(t, l, old.Name)))
}

func TestNamesDoNotLeadOut(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "builds", "link")))
	for _, name := range []string{"", ".", "..", "../x", "/etc/x", "builds/../../x", "builds/link/x", "a/./b", "a//b", "a/"} {
		u := must(l.Create(t.Context(), 10, "", strings.NewReader("x")))(t)
		_, err := commit(t.Context(), u, name)
		require.Error(t, err, name)
		_, err = l.Open(name)
		require.Error(t, err, name)
	}
	require.Empty(t, must(os.ReadDir(outside))(t))
	require.Empty(t, temporaries(t, dir))
}

func TestSweepRemovesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	old := must(l.Create(t.Context(), 10, "", strings.NewReader("old")))(t)
	fresh := must(l.Create(t.Context(), 10, "", strings.NewReader("fresh")))(t)
	past := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, old.temporary), past, past))

	removed := must(l.SweepTemporary(time.Hour))(t)
	require.Equal(t, 1, removed)
	require.Equal(t, []string{filepath.Base(fresh.temporary)}, temporaries(t, dir))

	removed = must(l.SweepTemporary(0))(t)
	require.Equal(t, 1, removed)
	old.Discard()
	fresh.Discard()
}

func TestFailuresOfTheSystemHaveTheirCodes(t *testing.T) {
	t.Parallel()
	require.Equal(t, store.DiskFull, store.CodeOf(failure("x", &fs.PathError{Op: "write", Err: syscall.ENOSPC})))
	require.Equal(t, store.DiskFull, store.CodeOf(failure("x", syscall.EDQUOT)))
	require.Equal(t, store.NotFound, store.CodeOf(failure("x", &fs.PathError{Op: "open", Err: syscall.ENOENT})))
	require.Equal(t, store.Internal, store.CodeOf(failure("x", errors.New("other"))))
}

func TestFullDiskIsDiskFull(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	needs.Allowed(t, "/dev/full", err)
	defer full.Close()
	l, _ := openLocal(t)
	for _, size := range []int{1, 1 << 19} {
		in := &tempWriter{file: full, out: full, limit: 1 << 20, hash: sha256.New()}
		err = l.take(in, "", bytes.NewReader(make([]byte, size)))
		require.Equal(t, store.DiskFull, store.CodeOf(err), size)
	}
}

func TestOpenNeedsADirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := OpenLocal(file, seal.NewRing(seal.Key{}))
	require.Error(t, err)
	l, _ := openLocal(t)
	free, size, err := l.Space()
	require.NoError(t, err)
	require.Positive(t, free)
	require.Greater(t, size, free)
}

func TestDiskKeepsItsReserve(t *testing.T) {
	t.Parallel()
	for reserve, want := range map[int64]store.Code{1: "", 1 << 62: store.DiskFull} {
		l := must(OpenLocal(t.TempDir(), seal.NewRing(seal.Key{})))(t)
		l.reserve = reserve
		require.Equal(t, want, store.CodeOf(l.Room()))
		require.NoError(t, l.Close())
	}
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
