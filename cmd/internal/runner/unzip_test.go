package runner

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unpack(t *testing.T, raw []byte, limits UnzipLimits) (string, Unzipped, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "inside")
	require.NoError(t, os.Mkdir(dir, 0o700))
	got, err := Unzip(t.Context(), bytes.NewReader(raw), int64(len(raw)), dir, limits)
	return dir, got, err
}

func TestUnzip(t *testing.T) {
	t.Parallel()
	raw := archive(t,
		entry{name: "dir/", mode: fs.ModeDir | 0o755},
		entry{name: "./dir/file", content: "12345"},
		entry{name: "made/on/the/way", content: "678"},
		entry{name: "tool", mode: 0o4750},
		entry{name: "dir/link", content: "../tool", mode: fs.ModeSymlink | 0o777},
		entry{name: "gone", content: "nowhere", mode: fs.ModeSymlink | 0o777},
		entry{name: "...", content: "odd but plain"},
	)
	dir, got, err := unpack(t, raw, UnzipLimits{Links: true})
	require.NoError(t, err)
	require.Equal(t, Unzipped{Files: 7, Bytes: 21}, got)
	content := must(os.ReadFile(filepath.Join(dir, "made/on/the/way")))(t)
	require.Equal(t, "678", string(content))
	info := must(os.Stat(filepath.Join(dir, "tool")))(t)
	require.Equal(t, fs.FileMode(0o755), info.Mode())
	require.Equal(t, "../tool", must(os.Readlink(filepath.Join(dir, "dir/link")))(t))
}

func TestUnzipRefuses(t *testing.T) {
	t.Parallel()
	link := func(name, target string) entry {
		return entry{name: name, content: target, mode: fs.ModeSymlink | 0o777}
	}
	tests := []struct {
		name    string
		entries []entry
		limits  UnzipLimits
	}{
		{"a way up", []entry{{name: "../x"}}, UnzipLimits{}},
		{"a way up further in", []entry{{name: "a/../../x"}}, UnzipLimits{}},
		{"a way up at the end", []entry{{name: "a/.."}}, UnzipLimits{}},
		{"a root", []entry{{name: "/x"}}, UnzipLimits{}},
		{"a backslash", []entry{{name: `..\x`}}, UnzipLimits{}},
		{"a NUL", []entry{{name: "a\x00b"}}, UnzipLimits{}},
		{"no name", []entry{{name: ""}}, UnzipLimits{}},
		{"a name that is not plain", []entry{{name: "a//b"}}, UnzipLimits{}},
		{"the same file twice", []entry{{name: "a"}, {name: "a"}}, UnzipLimits{}},
		{"a file as directory", []entry{{name: "a"}, {name: "a/b"}}, UnzipLimits{}},
		{"a device", []entry{{name: "a", mode: fs.ModeDevice | 0o644}}, UnzipLimits{}},
		{"a pipe", []entry{{name: "a", mode: fs.ModeNamedPipe | 0o644}}, UnzipLimits{}},
		{"a link where none is allowed", []entry{link("a", "b")}, UnzipLimits{}},
		{"a link to a root", []entry{link("a", "/etc")}, UnzipLimits{Links: true}},
		{"a link up", []entry{link("a", "../x")}, UnzipLimits{Links: true}},
		{"a link up from a directory", []entry{link("d/a", "../../x")}, UnzipLimits{Links: true}},
		{"a link up through another", []entry{link("s", "d"), link("a", "s/../../x")}, UnzipLimits{Links: true}},
		{"a link below a link", []entry{link("p/q/a", "../../b"), link("p/q/a/c", "../../../x"), {name: "b/f"}}, UnzipLimits{Links: true}},
		{"a file through a link", []entry{link("a", "b"), {name: "a/f"}}, UnzipLimits{Links: true}},
		{"an empty link", []entry{link("a", "")}, UnzipLimits{Links: true}},
		{"an endless link", []entry{link("a", strings.Repeat("x", 5000))}, UnzipLimits{Links: true}},
		{"a bomb", []entry{{name: "a", content: strings.Repeat("0", 1<<20)}}, UnzipLimits{Bytes: 1<<20 - 1}},
		{"many small bombs", []entry{{name: "a", content: "12345"}, {name: "b", content: "12345"}}, UnzipLimits{Bytes: 2*entryBytes + 11}},
		{"a long name", []entry{{name: strings.Repeat("x", 200)}}, UnzipLimits{Bytes: entryBytes + 199}},
		{"many empty files", []entry{{name: "a"}, {name: "b"}}, UnzipLimits{Bytes: 2 * entryBytes}},
		{"many directories", []entry{{name: "a/"}, {name: "b/"}}, UnzipLimits{Bytes: 2 * entryBytes}},
		{"many directories in a name", []entry{{name: "a/b/c"}}, UnzipLimits{Bytes: 3 * entryBytes}},
		{"many directories in a link's name", []entry{link("a/b/c", "d")}, UnzipLimits{Bytes: 3 * entryBytes, Links: true}},
		{"a long link", []entry{link("a", strings.Repeat("x", 3000))}, UnzipLimits{Bytes: entryBytes + 3000, Links: true}},
		{"too many entries", []entry{{name: "a"}, {name: "b"}, {name: "c"}}, UnzipLimits{Files: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, _, err := unpack(t, archive(t, tt.entries...), tt.limits)
			require.Error(t, err)
			requireAlone(t, dir)
		})
	}
}

// The same archives within their limits.
func TestUnzipCountsWhatItMakes(t *testing.T) {
	t.Parallel()
	link := entry{name: "a/link", content: "12345", mode: fs.ModeSymlink | 0o777}
	raw := archive(t, entry{name: "a/"}, entry{name: "a/"}, entry{name: "a/b/c", content: "1234567"}, link)
	const most = 4*entryBytes + 1 + 1 + 5 + 7 + 6 + 5
	_, got, err := unpack(t, raw, UnzipLimits{Bytes: most, Files: 4, Links: true})
	require.NoError(t, err)
	require.Equal(t, Unzipped{Files: 4, Bytes: 7}, got)
	_, _, err = unpack(t, raw, UnzipLimits{Bytes: most - 1, Links: true})
	require.ErrorContains(t, err, "archive unpacks to more than")
}

func TestUnzipTrustsWhatComesOut(t *testing.T) {
	t.Parallel()
	raw := archive(t, entry{name: "a", content: strings.Repeat("0", 5000)})
	_, _, err := unpack(t, raw[:len(raw)-10], UnzipLimits{})
	require.ErrorContains(t, err, "not a zip archive")
	damaged := bytes.Clone(raw)
	damaged[40] ^= 0xff
	_, _, err = unpack(t, damaged, UnzipLimits{})
	require.Error(t, err)
}

// requireAlone checks that nothing was made beside dir, and that every link
// below it leads to something below it.
func requireAlone(tb testing.TB, dir string) {
	tb.Helper()
	require.Len(tb, must(os.ReadDir(filepath.Dir(dir)))(tb), 1)
	require.NoError(tb, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(tb, err)
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			require.True(tb, real == dir || strings.HasPrefix(real, dir+"/"), real)
		}
		return nil
	}))
}

func FuzzUnzip(f *testing.F) {
	f.Add("a", "content", "b", "a", true)
	f.Add("../a", "content", "l", "../../x", true)
	f.Add("d/f", "", "d/l", "../..", false)
	f.Fuzz(func(t *testing.T, name, content, second, target string, asLink bool) {
		mode := fs.FileMode(0o644)
		if asLink {
			mode = fs.ModeSymlink | 0o777
		}
		raw := archive(t, entry{name: name, content: content}, entry{name: second, content: target, mode: mode})
		dir, _, _ := unpack(t, raw, UnzipLimits{Bytes: 1 << 20, Files: 10, Links: true})
		requireAlone(t, dir)
	})
}
