package certs_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/certs"
)

// entry is a file of an archive; a mode of 0 is a plain file.
type entry struct {
	name, content string
	mode          fs.FileMode
}

func archive(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		if e.mode != 0 {
			h.SetMode(e.mode)
		}
		f, err := w.CreateHeader(h)
		require.NoError(tb, err)
		_, err = f.Write([]byte(e.content))
		require.NoError(tb, err)
	}
	require.NoError(tb, w.Close())
	return buf.Bytes()
}

// limit is what the archives here may unpack to.
const limit = 1 << 20

func unpack(b []byte) (certs.Bundle, error) {
	return certs.Unpack(bytes.NewReader(b), int64(len(b)), limit)
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		entries []entry
		want    certs.Bundle
	}{
		"everything": {
			[]entry{
				{name: "cert.p12", content: "\x00p12\xff"},
				{name: "password.txt", content: " s3cret \r\n"},
				{name: "b.mobileprovision", content: "B"},
				{name: "a.mobileprovision", content: "A"},
			},
			certs.Bundle{P12: []byte("\x00p12\xff"), Password: "s3cret", Profiles: [][]byte{[]byte("B"), []byte("A")}},
		},
		"only the p12":                  {[]entry{{name: "c.p12", content: "x"}}, certs.Bundle{P12: []byte("x"), Profiles: [][]byte{}}},
		"an empty p12":                  {[]entry{{name: "c.p12"}}, certs.Bundle{P12: []byte{}, Profiles: [][]byte{}}},
		"the last of several":           {[]entry{{name: "a.p12", content: "1"}, {name: "b.p12", content: "2"}}, certs.Bundle{P12: []byte("2"), Profiles: [][]byte{}}},
		"in directories":                {[]entry{{name: "d/", mode: fs.ModeDir | 0o755}, {name: "d/c.p12", content: "x"}, {name: "d/x.mobileprovision", content: "m"}}, certs.Bundle{P12: []byte("x"), Profiles: [][]byte{[]byte("m")}}},
		"a password elsewhere is none":  {[]entry{{name: "c.p12", content: "x"}, {name: "d/password.txt", content: "p"}}, certs.Bundle{P12: []byte("x"), Profiles: [][]byte{}}},
		"a password that is not UTF-8":  {[]entry{{name: "c.p12", content: "x"}, {name: "password.txt", content: "a\xffb"}}, certs.Bundle{P12: []byte("x"), Password: "a\uFFFDb", Profiles: [][]byte{}}},
		"a directory that ends in .p12": {[]entry{{name: "c.p12", content: "x"}, {name: "d.p12/", mode: fs.ModeDir | 0o755}}, certs.Bundle{P12: []byte("x"), Profiles: [][]byte{}}},
		"what macOS adds":               {[]entry{{name: "c.p12", content: "x"}, {name: "__MACOSX/._c.p12", content: "y"}, {name: "._c.p12", content: "z"}, {name: "__MACOSX/._a.mobileprovision", content: "z"}}, certs.Bundle{P12: []byte("x"), Profiles: [][]byte{}}},
		"other files are passed over":   {[]entry{{name: "readme.txt", content: "x"}, {name: "c.p12", content: "x"}, {name: "C.P12.bak", content: "x"}}, certs.Bundle{P12: []byte("x"), Profiles: [][]byte{}}},
	} {
		got, err := unpack(archive(t, tt.entries...))
		require.NoError(t, err, name)
		require.Equal(t, tt.want, got, name)
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	p12 := entry{name: "c.p12", content: "x"}
	half := strings.Repeat("\x00", limit/2)
	for name, tt := range map[string]struct {
		archive []byte
		text    string
	}{
		"nothing":                 {nil, "not a valid zip file"},
		"something else":          {[]byte("no archive at all, just a text"), "not a valid zip file"},
		"an empty archive":        {archive(t), "no .p12 file"},
		"no p12":                  {archive(t, entry{name: "password.txt", content: "x"}), "no .p12 file"},
		"a parent directory":      {archive(t, p12, entry{name: "../x.mobileprovision"}), "leads out"},
		"a parent further down":   {archive(t, p12, entry{name: "a/../../x"}), "leads out"},
		"an absolute name":        {archive(t, p12, entry{name: "/etc/passwd"}), "leads out"},
		"a backslash":             {archive(t, p12, entry{name: `a\b.p12`}), "leads out"},
		"a drive":                 {archive(t, p12, entry{name: `C:\x.p12`}), "leads out"},
		"a NUL":                   {archive(t, p12, entry{name: "a\x00.p12"}), "leads out"},
		"a symbolic link":         {archive(t, entry{name: "c.p12", content: "/etc/shadow", mode: fs.ModeSymlink | 0o777}), "neither a file"},
		"a link that nobody asks": {archive(t, p12, entry{name: "x", content: "/etc/shadow", mode: fs.ModeSymlink | 0o777}), "neither a file"},
		"a device":                {archive(t, p12, entry{name: "x", mode: fs.ModeDevice | 0o600}), "neither a file"},
		"one byte too many":       {archive(t, p12, entry{name: "a.mobileprovision", content: half}, entry{name: "b.mobileprovision", content: half}), "more than it may"},
		"too much of the unasked": {archive(t, p12, entry{name: "a", content: half}, entry{name: "b", content: half}), "more than it may"},
		"half an archive":         {archive(t, p12)[:40], "not a valid zip file"},
	} {
		_, err := unpack(tt.archive)
		require.ErrorContains(t, err, tt.text, name)
	}
}

func TestExactlyTheLimitIsUnpacked(t *testing.T) {
	t.Parallel()
	b, err := unpack(archive(t, entry{name: "c.p12", content: "x"}, entry{name: "a.mobileprovision", content: strings.Repeat("\x00", limit-1)}))
	require.NoError(t, err)
	require.Len(t, b.Profiles[0], limit-1)
}

// lie changes the sizes that an archive claims, in its directory and before each
// entry, and keeps everything else.
func lie(b []byte, size uint32) []byte {
	b = bytes.Clone(b)
	for i := range len(b) - 46 {
		switch {
		case bytes.Equal(b[i:i+4], []byte("PK\x01\x02")):
			binary.LittleEndian.PutUint32(b[i+24:], size)
		case bytes.Equal(b[i:i+4], []byte("PK\x07\x08")): // data descriptor
			binary.LittleEndian.PutUint32(b[i+12:], size)
		}
	}
	return b
}

// A directory that claims little for what unpacks to a lot must not get past.
func TestABombThatLiesIsRefused(t *testing.T) {
	t.Parallel()
	bomb := archive(t, entry{name: "c.p12", content: strings.Repeat("\x00", 3*limit)})
	require.Less(t, len(bomb), limit/10)
	_, err := unpack(bomb)
	require.ErrorContains(t, err, "more than it may", "as it says itself")
	_, err = unpack(lie(bomb, 10))
	require.ErrorIs(t, err, zip.ErrFormat, "and is not read on to see how much")
	half := archive(t,
		entry{name: "c.p12", content: strings.Repeat("\x00", limit-10)},
		entry{name: "a.mobileprovision", content: strings.Repeat("\x00", limit-10)},
	)
	_, err = unpack(lie(half, 10))
	require.Error(t, err)
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, entry{name: "c.p12", content: "p12"}, entry{name: "password.txt", content: "pw\n"}, entry{name: "a.mobileprovision", content: "m"}))
	f.Add(archive(f, entry{name: "../c.p12", content: "p12"}))
	f.Add(archive(f, entry{name: "c.p12", content: "/etc", mode: fs.ModeSymlink | 0o777}))
	f.Add(lie(archive(f, entry{name: "c.p12", content: strings.Repeat("a", 1000)}), 10))
	f.Add([]byte("PK\x05\x06" + strings.Repeat("\x00", 18)))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := unpack(data)
		if err != nil {
			require.Nil(t, b.P12)
			return
		}
		require.NotNil(t, b.P12)
		require.NotNil(t, b.Profiles)
		sum := len(b.P12)
		for _, p := range b.Profiles {
			require.NotNil(t, p)
			sum += len(p)
		}
		require.LessOrEqual(t, sum, limit)
		require.Equal(t, strings.TrimSpace(b.Password), b.Password)
	})
}
