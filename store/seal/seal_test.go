package seal

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

const name = "builds/abc/certs.zip"

func sealStream(t *testing.T, r *Ring, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := r.NewWriter(&out, Certificates, name)
	require.NoError(t, err)
	_, err = io.Copy(w, iotest.HalfReader(bytes.NewReader(content)))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.EqualValues(t, out.Len(), Size(int64(len(content))))
	return out.Bytes()
}

func openStream(r *Ring, sealed []byte, binding string) ([]byte, error) {
	u, err := r.NewReader(bytes.NewReader(sealed), int64(len(sealed)), Certificates, binding)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(u)
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestStreamComesBack(t *testing.T) {
	t.Parallel()
	r := NewRing(Key{7})
	for _, size := range []int{0, 1, chunkSize - 1, chunkSize, chunkSize + 1, 3 * chunkSize, 3*chunkSize + 5} {
		content := randomBytes(size)
		sealed := sealStream(t, r, content)
		got, err := openStream(r, sealed, name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), size)
		if size > 16 {
			require.NotContains(t, string(sealed), string(content[:16]), "readable at rest")
		}
		require.NotEqual(t, sealed, sealStream(t, r, content), "each under a key of its own")
	}
}

func TestStreamSeeks(t *testing.T) {
	t.Parallel()
	r := NewRing(Key{7})
	content := randomBytes(2*chunkSize + 100)
	sealed := sealStream(t, r, content)
	u, err := r.NewReader(bytes.NewReader(sealed), int64(len(sealed)), Certificates, name)
	require.NoError(t, err)
	require.EqualValues(t, len(content), u.Size())
	require.NoError(t, iotest.TestReader(io.NewSectionReader(readerAt{u}, 0, u.Size()), content))
	end, err := u.Seek(-3, io.SeekEnd)
	require.NoError(t, err)
	require.Equal(t, u.Size()-3, end)
	_, err = u.Seek(-1, io.SeekStart)
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

func TestTamperingWithAStreamIsFound(t *testing.T) {
	t.Parallel()
	chunk := func(raw []byte, i int) []byte { return raw[HeadSize+i*step : HeadSize+(i+1)*step] }
	tests := map[string]func(raw []byte) []byte{
		"the last byte cut off":   func(raw []byte) []byte { return raw[:len(raw)-1] },
		"the last chunk cut off":  func(raw []byte) []byte { return raw[:HeadSize+2*step] },
		"all chunks cut off":      func(raw []byte) []byte { return raw[:HeadSize] },
		"cut off within the head": func(raw []byte) []byte { return raw[:HeadSize-1] },
		"emptied":                 func([]byte) []byte { return nil },
		"two chunks exchanged": func(raw []byte) []byte {
			return slices.Concat(raw[:HeadSize], chunk(raw, 1), chunk(raw, 0), raw[HeadSize+2*step:])
		},
		"a chunk repeated":         func(raw []byte) []byte { return slices.Concat(raw[:HeadSize+step], raw[HeadSize:]) },
		"a chunk left out":         func(raw []byte) []byte { return slices.Concat(raw[:HeadSize], raw[HeadSize+step:]) },
		"a byte added":             func(raw []byte) []byte { return append(raw, 0) },
		"a bit of the magic":       func(raw []byte) []byte { raw[0] ^= 1; return raw },
		"a bit of the salt":        func(raw []byte) []byte { raw[saltStart] ^= 1; return raw },
		"a bit of the first chunk": func(raw []byte) []byte { raw[HeadSize+9] ^= 0x40; return raw },
		"a bit of a middle tag":    func(raw []byte) []byte { raw[HeadSize+2*step-1] ^= 1; return raw },
		"a bit of the last chunk":  func(raw []byte) []byte { raw[len(raw)-tagSize-1] ^= 1; return raw },
	}
	r := NewRing(Key{7})
	for what, change := range tests {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			_, err := openStream(r, change(sealStream(t, r, randomBytes(2*chunkSize+1000))), name)
			require.ErrorIs(t, err, ErrDamaged)
		})
	}
	sealed := sealStream(t, r, []byte("secret"))
	_, err := openStream(r, sealed, "builds/other/certs.zip")
	require.ErrorIs(t, err, ErrDamaged)
	_, err = openStream(NewRing(Key{8}), sealed, name)
	require.ErrorIs(t, err, ErrUnknownKey)
}

func TestValuesOpenOnlyWhereTheyBelong(t *testing.T) {
	t.Parallel()
	old, both := NewRing(Key{}), NewRing(Key{1}, Key{})
	sealed := old.Seal(AccessToken, "7", []byte("token"))
	require.NotContains(t, string(sealed), "token")
	require.NotEqual(t, sealed, old.Seal(AccessToken, "7", []byte("token")), "each with a salt of its own")
	id, err := KeyOf(sealed)
	require.NoError(t, err)
	require.Equal(t, old.Current(), id)
	require.NotEqual(t, both.Current(), id)
	require.Equal(t, Key{}.ID(), id)
	text, err := both.Open(AccessToken, "7", sealed)
	require.NoError(t, err)
	require.Equal(t, "token", string(text))

	relabelled := slices.Clone(sealed)
	current := both.Current()
	copy(relabelled[idStart:], current[:])
	for what, attempt := range map[string]struct {
		ring    *Ring
		kind    Kind
		binding string
		sealed  []byte
		want    error
	}{
		"another row's":         {both, AccessToken, "8", sealed, ErrDamaged},
		"another kind":          {both, RefreshToken, "7", sealed, ErrDamaged},
		"another key's id":      {both, AccessToken, "7", relabelled, ErrDamaged},
		"an unknown key":        {NewRing(Key{1}), AccessToken, "7", sealed, ErrUnknownKey},
		"longer":                {both, AccessToken, "7", append(slices.Clone(sealed), 1), ErrDamaged},
		"cut off":               {both, AccessToken, "7", sealed[:len(sealed)-1], ErrDamaged},
		"cut off within a head": {both, AccessToken, "7", sealed[:HeadSize-1], ErrDamaged},
		"nothing":               {both, AccessToken, "7", nil, ErrDamaged},
		"clear text":            {both, AccessToken, "7", []byte("a token in clear text, longer than what stands before sealed content"), ErrDamaged},
	} {
		text, err := attempt.ring.Open(attempt.kind, attempt.binding, attempt.sealed)
		require.ErrorIs(t, err, attempt.want, what)
		require.True(t, Broken(err), what)
		require.Empty(t, text, what)
	}
	// A value is a stream of one chunk.
	u, err := both.NewReader(bytes.NewReader(sealed), int64(len(sealed)), AccessToken, "7")
	require.NoError(t, err)
	require.EqualValues(t, len("token"), u.Size())
}

func TestKeysAreParsed(t *testing.T) {
	t.Parallel()
	k, err := ParseKey(base64.StdEncoding.EncodeToString(append([]byte{1}, make([]byte, 31)...)))
	require.NoError(t, err)
	require.Equal(t, Key{1}, k)
	for _, text := range []string{"", "x", base64.StdEncoding.EncodeToString(make([]byte, 16)), base64.StdEncoding.EncodeToString(make([]byte, 33))} {
		_, err := ParseKey(text)
		require.EqualError(t, err, "must be 32 bytes in base64")
	}
}

func TestCiphersDifferBySecretSaltAndUse(t *testing.T) {
	t.Parallel()
	sealed := Cipher([]byte("secret"), []byte("salt"), "use").Seal(nil, nil, []byte("reply"), nil)
	for _, c := range []struct {
		secret, salt, use string
		opens             bool
	}{{"secret", "salt", "use", true}, {"other", "salt", "use", false}, {"secret", "other", "use", false}, {"secret", "salt", "other", false}} {
		got, err := Cipher([]byte(c.secret), []byte(c.salt), c.use).Open(nil, nil, sealed, nil)
		require.Equal(t, c.opens, err == nil)
		require.Equal(t, c.opens, string(got) == "reply")
	}
}
