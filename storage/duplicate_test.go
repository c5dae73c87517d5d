package storage

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func place(t *testing.T, l *Local, name string, content []byte) {
	t.Helper()
	u, err := l.Create(t.Context(), int64(len(content)))
	require.NoError(t, err)
	_, err = u.Write(content)
	require.NoError(t, err)
	_, _, err = u.Finish()
	require.NoError(t, err)
	require.NoError(t, u.Commit(name))
}

func content(t *testing.T, l *Local, name string) []byte {
	t.Helper()
	f, err := l.Open(name)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

func TestDuplicateOutlivesItsOriginal(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	want := bytes.Repeat([]byte("takt!"), 100_000)
	copied := func(l *Local) (*Upload, error) {
		f, err := l.Open("builds/old/source.zip")
		require.NoError(t, err)
		defer f.Close()
		return l.copyOf(t.Context(), f)
	}
	for way, duplicate := range map[string]func(*Local) (*Upload, error){
		"linked": func(l *Local) (*Upload, error) { return l.Duplicate(t.Context(), "builds/old/source.zip") },
		"copied": copied,
	} {
		place(t, l, "builds/old/source.zip", want)
		past := time.Now().Add(-48 * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, "builds/old/source.zip"), past, past))
		u, err := duplicate(l)
		require.NoError(t, err, way)
		removed, err := l.SweepTemporary(time.Hour)
		require.NoError(t, err)
		require.Zero(t, removed, "%s: it is on its way, however old its content is", way)
		require.NoError(t, u.Commit("builds/"+way+"/source.zip"))
		u.Discard()
		require.NoError(t, l.RemoveBuild("old"))
		require.True(t, bytes.Equal(want, content(t, l, "builds/"+way+"/source.zip")), way)
		require.Empty(t, temporaries(t, dir))
	}
}

func TestDuplicateThatIsNotPlacedLeavesNothing(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	place(t, l, "builds/old/source.zip", []byte("content"))
	u, err := l.Duplicate(t.Context(), "builds/old/source.zip")
	require.NoError(t, err)
	require.Len(t, temporaries(t, dir), 1)
	u.Discard()
	require.Empty(t, temporaries(t, dir))
	require.Equal(t, "content", string(content(t, l, "builds/old/source.zip")))
}

func TestDuplicateOfWhatIsNoFile(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	place(t, l, "builds/old/source.zip", []byte("content"))
	for _, name := range []string{"builds/none/source.zip", "builds/old"} {
		_, err := l.Duplicate(t.Context(), name)
		require.Equal(t, store.NotFound, store.CodeOf(err), name)
	}
	for _, name := range []string{"../x", "/etc/passwd", ""} {
		_, err := l.Duplicate(t.Context(), name)
		require.Error(t, err, name)
	}
	require.Empty(t, temporaries(t, dir))
}
