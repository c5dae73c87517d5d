package storage

import (
	"bytes"
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
)

func openLocal(tb testing.TB) (local *Local, dir string) {
	tb.Helper()
	dir = filepath.Join(tb.TempDir(), "files")
	l, err := OpenLocal(dir, seal.NewRing(seal.Key{7}))
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l, dir
}

func temporaries(tb testing.TB, dir string) []string {
	tb.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, temporaryDir))
	require.NoError(tb, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestUploadIsPlacedWithSizeAndDigest(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	content := bytes.Repeat([]byte("takt!"), 300_000)

	u, err := l.Create(t.Context(), int64(len(content)))
	require.NoError(t, err)
	// Small pieces, as a multipart part gives them.
	n, err := u.ReadFrom(iotest.HalfReader(bytes.NewReader(content)))
	require.NoError(t, err)
	require.Equal(t, int64(len(content)), n)
	size, digest, err := u.Finish()
	require.NoError(t, err)
	require.Equal(t, int64(len(content)), size)
	require.Equal(t, sha256.Sum256(content), digest)
	require.Len(t, temporaries(t, dir), 1)

	require.NoError(t, u.Commit("builds/abc/source.zip"))
	u.Discard()
	u.Discard()
	require.Empty(t, temporaries(t, dir))

	f, err := l.Open("builds/abc/source.zip")
	require.NoError(t, err)
	got, err := io.ReadAll(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, size, f.Size)
	require.True(t, bytes.Equal(content, got))
}

func TestFilesAreClosedToOthers(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	u, err := l.Create(t.Context(), 10)
	require.NoError(t, err)
	_, _, err = u.Finish()
	require.NoError(t, err)
	require.NoError(t, u.Commit("builds/abc/source.zip"))
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, d.Name())
		return nil
	})
	require.NoError(t, err)
}

func TestUploadOverItsLimitLeavesNothing(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	for _, size := range []int{11, copyBuffer + 1, 3 * copyBuffer} {
		u, err := l.Create(t.Context(), 10)
		require.NoError(t, err)
		_, err = u.ReadFrom(bytes.NewReader(make([]byte, size)))
		require.Equal(t, store.TooLarge, store.CodeOf(err))
		_, _, err = u.Finish()
		require.Equal(t, store.TooLarge, store.CodeOf(err), "the error sticks")
		require.Error(t, u.Commit("builds/abc/source.zip"))
		u.Discard()
	}
	require.Empty(t, temporaries(t, dir))
	_, err := l.Open("builds/abc/source.zip")
	require.Equal(t, store.NotFound, store.CodeOf(err))
}

func TestUploadWhoseSourceBreaksOffFails(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	for _, cause := range []error{io.ErrUnexpectedEOF, syscall.ECONNRESET} {
		u, err := l.Create(t.Context(), 1000)
		require.NoError(t, err)
		_, err = u.ReadFrom(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(cause)))
		require.ErrorIs(t, err, cause)
		u.Discard()
	}
	require.Empty(t, temporaries(t, dir))
}

func TestUploadIsUsedInOrderOnly(t *testing.T) {
	t.Parallel()
	l, _ := openLocal(t)
	u, err := l.Create(t.Context(), 10)
	require.NoError(t, err)
	require.Error(t, u.Commit("builds/abc/x"), "not finished")
	_, _, err = u.Finish()
	require.NoError(t, err)
	_, err = u.Write([]byte("x"))
	require.Error(t, err, "finished")
	u.Discard()
	require.Error(t, u.Commit("builds/abc/x"), "discarded")
	_, err = u.Write([]byte("x"))
	require.Error(t, err, "discarded")
	_, _, err = u.Finish()
	require.Error(t, err, "discarded")
}

func TestNamesDoNotLeadOut(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	require.NoError(t, os.Mkdir(outside, 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "builds", "link")))
	for _, name := range []string{"", ".", "..", "../x", "/etc/x", "builds/../../x", "builds/link/x", "a/./b", "a//b", "a/"} {
		u, err := l.Create(t.Context(), 10)
		require.NoError(t, err)
		_, _, err = u.Finish()
		require.NoError(t, err)
		require.Error(t, u.Commit(name), name)
		u.Discard()
		_, err = l.Open(name)
		require.Error(t, err, name)
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Empty(t, temporaries(t, dir))
}

func TestRemoveBuildRemovesOneBuild(t *testing.T) {
	t.Parallel()
	l, _ := openLocal(t)
	for _, id := range []string{"one", "two"} {
		u, err := l.Create(t.Context(), 10)
		require.NoError(t, err)
		_, _, err = u.Finish()
		require.NoError(t, err)
		require.NoError(t, u.Commit("builds/"+id+"/source.zip"))
	}
	require.NoError(t, l.RemoveBuild("one"))
	require.NoError(t, l.RemoveBuild("one"), "again")
	for _, id := range []string{"", "..", "two/..", "../builds"} {
		require.Error(t, l.RemoveBuild(id), id)
	}
	_, err := l.Open("builds/one/source.zip")
	require.Equal(t, store.NotFound, store.CodeOf(err))
	f, err := l.Open("builds/two/source.zip")
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestSweepRemovesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	old, err := l.Create(t.Context(), 10)
	require.NoError(t, err)
	fresh, err := l.Create(t.Context(), 10)
	require.NoError(t, err)
	past := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, old.temporary), past, past))

	removed, err := l.SweepTemporary(time.Hour)
	require.NoError(t, err)
	require.Equal(t, 1, removed)
	require.Equal(t, []string{filepath.Base(fresh.temporary)}, temporaries(t, dir))

	removed, err = l.SweepTemporary(0)
	require.NoError(t, err)
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
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	l, dir := openLocal(t)
	u, err := l.Create(t.Context(), 1<<20)
	require.NoError(t, err)
	require.NoError(t, u.file.Close())
	u.file, u.out = full, full
	_, err = u.ReadFrom(bytes.NewReader(make([]byte, 1<<19)))
	require.Equal(t, store.DiskFull, store.CodeOf(err))
	u.Discard()
	require.Empty(t, temporaries(t, dir))
}

func TestOpenNeedsADirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := OpenLocal(file, seal.NewRing(seal.Key{}))
	require.Error(t, err)
	l, _ := openLocal(t)
	free, err := l.Free()
	require.NoError(t, err)
	require.Positive(t, free)
}

func BenchmarkUpload(b *testing.B) {
	l, _ := openLocal(b)
	const size = 256 << 20
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		u, err := l.Create(b.Context(), size)
		require.NoError(b, err)
		_, err = u.ReadFrom(io.LimitReader(zeros{}, size))
		require.NoError(b, err)
		_, _, err = u.Finish()
		require.NoError(b, err)
		u.Discard()
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
