package storage

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/seal"
)

// with is d after its keys were changed.
func (d *depot) with(keys *seal.Ring) *Files {
	d.t.Helper()
	local := must(OpenLocal(d.dir, keys))(d.t)
	d.t.Cleanup(func() { require.NoError(d.t, local.Close()) })
	return must(NewFiles(d.mode, local, d.s3))(d.t)
}

func plainOf(t *testing.T, f *Files, file store.File) ([]byte, error) {
	t.Helper()
	r, err := f.OpenSealed(t.Context(), file)
	if err != nil {
		return nil, err
	}
	defer r.Close() // only read from
	return io.ReadAll(r)
}

func TestCopiesAreSealedWithTheNewKey(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeDual)
	content := randomBytes(2*chunkSize + 5)
	file := d.keep(certsName, content, true)
	row := store.FileRow{FileKey: store.FileKey{Kind: store.CertsFile}, File: file}
	fresh := seal.Key{9}
	both, alone := d.with(seal.NewRing(fresh, seal.Key{7})), d.with(seal.NewRing(fresh))
	for _, remote := range []bool{false, true} {
		id := must(both.KeyOf(t.Context(), row, remote))(t)
		require.Equal(t, seal.Key{7}.ID(), id)
		require.ErrorIs(t, alone.Reseal(t.Context(), row, remote), seal.ErrUnknownKey)
	}
	_, err := plainOf(t, alone, file)
	require.ErrorIs(t, err, seal.ErrUnknownKey)

	// Whoever reads the object meanwhile reads on. Its chunks are asked for one by one.
	remote := file
	remote.Location = store.InS3
	reading := must(both.OpenSealed(t.Context(), remote))(t)
	defer reading.Close() // only read from
	begin := make([]byte, 10)
	must(io.ReadFull(reading, begin))(t)

	require.NoError(t, both.Reseal(t.Context(), row, true))
	got, err := plainOf(t, alone, file)
	require.NoError(t, err, "the copy in S3 is enough, when the one on this disk is under a key that is gone")
	require.True(t, bytes.Equal(content, got))
	rest := must(io.ReadAll(reading))(t)
	require.True(t, bytes.Equal(content, append(begin, rest...)))

	require.NoError(t, both.Reseal(t.Context(), row, false))
	for _, remote := range []bool{false, true} {
		id := must(alone.KeyOf(t.Context(), row, remote))(t)
		require.Equal(t, fresh.ID(), id)
		require.NoError(t, alone.Check(t.Context(), row, remote, true))
	}
	require.Equal(t, []string{certsName}, d.local(), "no spool file is left")
	require.Len(t, d.server.Objects(), 1)
}

func TestNothingThatDoesNotOpenIsReplaced(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeLocal)
	file := d.keep(certsName, randomBytes(chunkSize+5), true)
	row := store.FileRow{FileKey: store.FileKey{Kind: store.CertsFile}, File: file}
	path := filepath.Join(d.dir, certsName)
	whole := must(os.ReadFile(path))(t)
	both := d.with(seal.NewRing(seal.Key{9}, seal.Key{7}))
	for name, spoil := range map[string]func(raw []byte){
		"the first chunk": func(raw []byte) { raw[seal.HeadSize] ^= 1 },
		"the last chunk":  func(raw []byte) { raw[len(raw)-1] ^= 1 },
		"the head":        func(raw []byte) { raw[0] ^= 1 },
	} {
		raw := bytes.Clone(whole)
		spoil(raw)
		require.NoError(t, os.WriteFile(path, raw, 0o600))
		require.ErrorIs(t, both.Reseal(t.Context(), row, false), seal.ErrDamaged, name)
		kept := must(os.ReadFile(path))(t)
		require.True(t, bytes.Equal(raw, kept), name)
	}
	require.NoError(t, os.WriteFile(path, whole, 0o600))
	other := row
	other.SHA256[0] ^= 1
	require.ErrorIs(t, both.Reseal(t.Context(), other, false), ErrDamaged, "another digest than the row's")
	require.NoError(t, os.Remove(path))
	require.Equal(t, store.NotFound, store.CodeOf(both.Reseal(t.Context(), row, false)))
	require.Empty(t, d.local())
}
