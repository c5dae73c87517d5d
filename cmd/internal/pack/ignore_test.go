package pack_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"takt/cmd/internal/pack"
	"takt/store/storetest/needs"
)

// What a .gitignore leaves out of a directory without git is what git leaves out.
func TestIgnoresAsGitDoes(t *testing.T) {
	t.Parallel()
	needs.Git(t)
	bare := t.TempDir()
	dir{t, bare}.git("init", "-q", "--bare", bare)
	rapid.Check(t, func(r *rapid.T) {
		plain, err := os.MkdirTemp("", "pack-plain-")
		require.NoError(r, err)
		defer os.RemoveAll(plain)
		part := rapid.SampledFrom([]string{"a", "b", "ab", "abc", "a.b", "-", "]", "[a]", "a b", "#", "!a", "ü", "*", "Z"})
		glob := rapid.SampledFrom([]string{
			"a", "b", "*", "**", "***", "?", "a*", "*b", "a*c", "*.b", "a**", "**b", "[ab]", "[!a]", "[^a]", "[a-c]*", "[]]", "[!]]", "[]-a]", "[[:alpha:]]*",
			"[[:nosuch:]]", "[[:upper:][:punct:]]", "[a", `[\]]`, `\a`, `\*`, `\#`, `\!a`, `\`, `a\ `, "a ", "#", "!", "ü", "[ü]", "[a-]", "[--0]", "[z-a]", "a[", "", ".", `[a\-c]`, "[[:]", "[:a]", "[[a]",
		})
		for range rapid.IntRange(1, 12).Draw(r, "files") {
			name := filepath.Join(rapid.SliceOfN(part, 1, 4).Draw(r, "file")...)
			if os.MkdirAll(filepath.Join(plain, filepath.Dir(name)), 0o755) == nil {
				_ = os.WriteFile(filepath.Join(plain, name), nil, 0o600) // or it is a directory
			}
		}
		ignore := func(dir string) {
			var lines []string
			for range rapid.IntRange(1, 5).Draw(r, "lines") {
				line := strings.Join(rapid.SliceOfN(glob, 1, 4).Draw(r, "pattern"), "/")
				lines = append(lines, rapid.SampledFrom([]string{"", "", "!", "/", "!/"}).Draw(r, "before")+line+rapid.SampledFrom([]string{"", "", "/", " ", "\r"}).Draw(r, "after"))
			}
			_ = os.WriteFile(filepath.Join(plain, dir, ".gitignore"), []byte(strings.Join(lines, "\n")), 0o600)
		}
		ignore("")
		ignore("a")
		ignore("a/b")
		var got []string
		if tree, err := pack.List(t.Context(), pack.Options{Dir: plain}); err == nil {
			got = names(tree)
		} else {
			require.ErrorContains(r, err, "all files are ignored")
		}
		out := dir{t, plain}.git("--git-dir="+bare, "--work-tree="+plain, "ls-files", "-z", "--others", "--exclude-standard")
		want := strings.FieldsFunc(out, func(c rune) bool { return c == 0 })
		slices.Sort(want)
		slices.Sort(got)
		require.Equal(r, want, slices.Clip(append([]string{}, got...)))
	})
}

// The rules of a .taktignore are the same with and without git.
func TestTaktignore(t *testing.T) {
	t.Parallel()
	needs.Git(t)
	files := []string{"a", "x.log", "keep.log", ".env", "src/a", "src/.env", "src/out/b", "out/a", "out/.env", "out/deep/a", "out/deep/b", "mods/one/a", "mods/one/out/b", "mods/two/a", "logs/x.log"}
	const ignored = "*.log\n.env\nout/\nmods\n"
	tests := []struct {
		name, lines string
		want        []string
	}{
		{"none", "", []string{"a", "src/a"}},
		{"a comment", "# !out\n\n", []string{"a", "src/a"}},
		{"a file is brought back", "!.env", []string{".env", "a", "src/.env", "src/a"}},
		{"here only", "!/.env", []string{".env", "a", "src/a"}},
		{"a directory is brought back with all that is in it", "!/out/", []string{"a", "out/.env", "out/a", "out/deep/a", "out/deep/b", "src/a"}},
		{"at any depth, but not below what is ignored", "!out", []string{"a", "out/.env", "out/a", "out/deep/a", "out/deep/b", "src/a", "src/out/b"}},
		{"without some of it", "!/out/\n/out/deep/\n.env\n", []string{"a", "out/a", "src/a"}},
		{"from an ignored directory", "!/mods/one/", []string{"a", "mods/one/a", "mods/one/out/b", "src/a"}},
		{"some files from an ignored directory", "!out/deep/[a-z]", []string{"a", "out/deep/a", "out/deep/b", "src/a"}},
		{"from directories that a star names", "!mods/*/a", []string{"a", "mods/one/a", "mods/two/a", "src/a"}},
		{"and again without it", "!/mods/one/\nmods/one/out", []string{"a", "mods/one/a", "src/a"}},
		{"where a line without a slash brings back nothing", "!/out/deep/a\n!b\n", []string{"a", "out/deep/a", "src/a"}},
		{"two stars look into nothing that is ignored", "!**/deep/a", []string{"a", "src/a"}},
		{"the last line wins", "!.env\n.env\n", []string{"a", "src/a"}},
		{"a file that git has", "src\n", []string{"a"}},
		{"nothing comes back below what it leaves out", "src\n!src/a\n", []string{"a"}},
		{"only this", "/*\n!/src/\n", []string{"src/a"}},
		{"a directory of ignored files, which is not ignored itself", "!logs/\n", []string{"a", "src/a"}},
		{"a file in such a directory", "!x.log\n", []string{"a", "logs/x.log", "src/a", "x.log"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plain := newDir(t)
			plain.write(append(files, ".gitignore="+ignored, ".taktignore="+tt.lines)...)
			repository := newRepository(t, ".gitignore="+ignored)
			repository.write(append(files, ".taktignore="+tt.lines)...)
			above := newRepository(t, ".gitignore="+ignored)
			above.at("sub").write(append(files, ".gitignore", ".taktignore="+tt.lines)...)
			for _, dir := range []string{plain.path, repository.path, above.at("sub").path} {
				got := slices.DeleteFunc(names(list(t, pack.Options{Dir: dir})), func(name string) bool { return strings.HasSuffix(name, "ignore") })
				require.Equal(t, tt.want, got)
			}
		})
	}
}

func TestTaktignoreOfItsOwnKind(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	d.write("a", "b", "c", "deep/.taktignore=a\n", "deep/a", ".gitignore/b")
	d.write(".taktignore=\ufeffb\r\nc")
	require.Equal(t, []string{".taktignore", "a", "deep/.taktignore", "deep/a"}, names(list(t, pack.Options{Dir: d.path})), "only the one of the directory counts")
}
