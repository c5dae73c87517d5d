package storage

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

const sealedName = "builds/abc/certs.zip"

// placeSealed stores content and returns the path of the sealed file.
func placeSealed(t *testing.T, l *Local, dir string, content []byte) string {
	t.Helper()
	u, err := l.Create(t.Context(), int64(len(content)), sealedName, iotest.HalfReader(bytes.NewReader(content)))
	require.NoError(t, err)
	require.Equal(t, int64(len(content)), u.Size)
	require.Equal(t, sha256.Sum256(content), u.SHA256, "of the plain content")
	require.NoError(t, u.rename(sealedName))
	return filepath.Join(dir, filepath.FromSlash(sealedName))
}

func openSealed(l *Local, binding string) (*SealedFile, error) {
	f, err := l.Open(sealedName)
	if err != nil {
		return nil, err
	}
	return unsealFile(f, l.key, binding)
}

func unseal(l *Local, binding string) ([]byte, error) {
	f, err := openSealed(l, binding)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	return io.ReadAll(f)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestSealedContentComesBack(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3 * chunkSize, 3*chunkSize + 5} {
		content := randomBytes(size)
		file := placeSealed(t, l, dir, content)
		got, err := unseal(l, sealedName)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), size)

		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		if size > 16 {
			require.NotContains(t, string(raw), string(content[:16]), "readable at rest")
		}
	}
}

func TestSealedContentSeeks(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	content := randomBytes(2*chunkSize + 100)
	placeSealed(t, l, dir, content)
	f, err := openSealed(l, sealedName)
	require.NoError(t, err)
	defer f.Close() //nolint:errcheck // only read from
	require.NoError(t, iotest.TestReader(io.NewSectionReader(readerAt{f}, 0, f.Size), content))
	end, err := f.Seek(-3, io.SeekEnd)
	require.NoError(t, err)
	require.Equal(t, f.Size-3, end)
	_, err = f.Seek(-1, io.SeekStart)
	require.Error(t, err)
}

// readerAt turns seeking and reading into ReadAt, for iotest.
type readerAt struct{ r io.ReadSeeker }

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	if _, err := r.r.Seek(off, io.SeekStart); err != nil {
		return 0, err
	}
	return io.ReadFull(r.r, p)
}

func TestTamperingWithSealedContentIsFound(t *testing.T) {
	t.Parallel()
	const step = chunkSize + tagSize
	chunk := func(raw []byte, i int) []byte { return raw[sealHead+i*step : sealHead+(i+1)*step] }
	tests := map[string]func(raw []byte) []byte{
		"the last byte cut off":   func(raw []byte) []byte { return raw[:len(raw)-1] },
		"the last chunk cut off":  func(raw []byte) []byte { return raw[:sealHead+2*step] },
		"all chunks cut off":      func(raw []byte) []byte { return raw[:sealHead] },
		"cut off within the head": func(raw []byte) []byte { return raw[:sealHead-1] },
		"emptied":                 func([]byte) []byte { return nil },
		"two chunks exchanged": func(raw []byte) []byte {
			return slices.Concat(raw[:sealHead], chunk(raw, 1), chunk(raw, 0), raw[sealHead+2*step:])
		},
		"a chunk repeated":         func(raw []byte) []byte { return slices.Concat(raw[:sealHead+step], raw[sealHead:]) },
		"a chunk left out":         func(raw []byte) []byte { return slices.Concat(raw[:sealHead], raw[sealHead+step:]) },
		"a byte added":             func(raw []byte) []byte { return append(raw, 0) },
		"a bit of the magic":       func(raw []byte) []byte { raw[0] ^= 1; return raw },
		"a bit of the salt":        func(raw []byte) []byte { raw[len(sealMagic)] ^= 1; return raw },
		"a bit of the first chunk": func(raw []byte) []byte { raw[sealHead+9] ^= 0x40; return raw },
		"a bit of a middle tag":    func(raw []byte) []byte { raw[sealHead+2*step-1] ^= 1; return raw },
		"a bit of the last chunk":  func(raw []byte) []byte { raw[len(raw)-tagSize-1] ^= 1; return raw },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, dir := openLocal(t)
			file := placeSealed(t, l, dir, randomBytes(2*chunkSize+1000))
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, change(raw), 0o600))
			_, err = unseal(l, sealedName)
			require.ErrorIs(t, err, errSeal)
		})
	}
}

func TestSealedContentOpensWithItsBindingAndKeyOnly(t *testing.T) {
	t.Parallel()
	l, dir := openLocal(t)
	placeSealed(t, l, dir, []byte("secret"))
	_, err := unseal(l, "builds/other/certs.zip")
	require.ErrorIs(t, err, errSeal)
	other, err := OpenLocal(dir, Config{EncryptionKey: bytes.Repeat([]byte{8}, 32)})
	require.NoError(t, err)
	defer other.Close() //nolint:errcheck // nothing is open in it
	_, err = unseal(other, sealedName)
	require.ErrorIs(t, err, errSeal)
}
