package storage

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func content(t *testing.T, l *Local, name string) []byte {
	t.Helper()
	f := must(l.Open(name))(t)
	defer f.Close()
	return must(io.ReadAll(f))(t)
}

// stored makes a local file and its row.
func stored(t *testing.T, l *Local, name string, content []byte) (*Files, store.File) {
	t.Helper()
	put(t, l, name, content)
	f := must(NewFiles(ModeLocal, l, nil))(t)
	return f, store.File{Name: name, Size: int64(len(content)), SHA256: sha256.Sum256(content), Location: store.OnDisk}
}

func TestDuplicateOutlivesItsOriginal(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte("takt!"), 100_000)
	for way, duplicate := range map[string]func(*Files, store.File) (*Upload, error){
		"linked": func(f *Files, old store.File) (*Upload, error) { return f.link(old), nil },
		"copied": func(f *Files, old store.File) (*Upload, error) { return f.copyOf(t.Context(), old, "") },
	} {
		l, dir := openLocal(t)
		f, old := stored(t, l, "builds/old/source.zip", want)
		past := time.Now().Add(-48 * time.Hour)
		require.NoError(t, os.Chtimes(filepath.Join(dir, old.Name), past, past))
		u, err := duplicate(f, old)
		require.NoError(t, err, way)
		require.Zero(t, must(l.SweepTemporary(time.Hour))(t), "%s: it is on its way, however old its content is", way)
		commitLocal(t, u, "builds/"+way+"/source.zip")
		must(l.Remove(old.Name))(t)
		require.True(t, bytes.Equal(want, content(t, l, "builds/"+way+"/source.zip")), way)
		require.Empty(t, temporaries(t, dir))
	}
}

func TestDuplicateThatIsNotCommittedLeavesNothing(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	f, old := stored(t, l, "builds/old/source.zip", []byte("content"))
	u := must(f.Duplicate(t.Context(), old, ""))(t)
	require.Len(t, temporaries(t, dir), 1)
	u.Discard()
	require.Empty(t, temporaries(t, dir))
	require.Equal(t, "content", string(content(t, l, old.Name)))
	old.SHA256[0]++
	_, err := f.copyOf(t.Context(), old, "")
	require.ErrorIs(t, err, ErrDamaged)
	require.Empty(t, temporaries(t, dir))
}

func TestDuplicateOfASealedFileOpensUnderItsOwnName(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeDual)
	old := d.keep(certsName, []byte("secret"), true)
	u := must(d.Duplicate(t.Context(), old, "builds/new/certs.zip"))(t)
	row := must(commit(t.Context(), u, "builds/new/certs.zip"))(t)
	require.Equal(t, "secret", string(d.read(row, true)))
}

func TestDuplicateOfWhatIsNoFile(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	f, old := stored(t, l, "builds/old/source.zip", []byte("content"))
	for name, code := range map[string]store.Code{
		"builds/none/source.zip": store.NotFound, "builds/old": store.NotFound,
		"../x": store.Internal, "/etc/passwd": store.Internal, "": store.Internal,
	} {
		old.Name = name
		_, err := f.Duplicate(t.Context(), old, "")
		require.Error(t, err, name)
		if code == store.NotFound {
			require.Equal(t, code, store.CodeOf(err), name)
		}
	}
	require.Empty(t, temporaries(t, dir))
}
