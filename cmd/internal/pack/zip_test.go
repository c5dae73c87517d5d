package pack_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/pack"
	"takt/cmd/internal/runner"
	"takt/store/storetest/needs"
)

// sample is a directory with what makes packing hard.
func sample(t *testing.T) dir {
	t.Helper()
	d := newDir(t)
	d.write("main.go=package main", "bin/tool=#!/bin/sh", "bin-2", ".git/config=secret", "sub/.gitignore=x", "sub/x")
	require.NoError(t, os.Chmod(filepath.Join(d.path, "bin/tool"), 0o755))
	d.at("empty")
	d.link("../main.go", "bin/link")
	d.link("nowhere", "dangling")
	d.link("sub", "dir")
	return d
}

func TestTheSameTreeGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	d := sample(t)
	first := archive(t, pack.Options{Dir: d.path})
	require.Equal(t, []string{
		"bin/", "bin/link->../main.go", "bin/tool=#!/bin/sh", "bin-2=", "dangling->nowhere", "dir->sub", "empty/", "main.go=package main", "sub/", "sub/.gitignore=x",
	}, contents(t, first))
	require.NoError(t, os.Chtimes(filepath.Join(d.path, "main.go"), time.Now(), time.Now().Add(time.Hour)))
	require.NoError(t, os.Chmod(filepath.Join(d.path, "main.go"), 0o600))
	require.NoError(t, os.Chmod(filepath.Join(d.path, "bin"), 0o700))
	require.Equal(t, first, archive(t, pack.Options{Dir: d.path}))

	needs.Git(t)
	d.remove(".git")
	d.git("init", "-q")
	d.remove("empty") // which git doesn't have
	inGit := archive(t, pack.Options{Dir: d.path})
	d.git("add", "-A")
	d.git("commit", "-qm", "first")
	require.Equal(t, inGit, archive(t, pack.Options{Dir: d.path}), "staged or not")
	clone := newDir(t)
	clone.git("clone", "-q", d.path, "c")
	require.Equal(t, inGit, archive(t, pack.Options{Dir: filepath.Join(clone.path, "c")}), "and a clone")
	d.remove(".git")
	require.Equal(t, inGit, archive(t, pack.Options{Dir: d.path}), "and without git")
}

// --all packs as takt 0.1.0 did.
func TestAll(t *testing.T) {
	t.Parallel()
	d := sample(t)
	d.write(".taktignore=bin", "sub/.git=gitdir: elsewhere", "pointer="+pointer)
	require.Equal(t, []string{
		".taktignore=bin", "bin/", "bin/link->../main.go", "bin/tool=#!/bin/sh", "bin-2=", "dangling->nowhere", "dir->sub", "empty/", "main.go=package main",
		"pointer=" + pointer, "sub/", "sub/.gitignore=x", "sub/x=",
	}, contents(t, archive(t, pack.Options{Dir: d.path, All: true})))
}

// A worker unpacks what is packed, whatever its name.
func TestAWorkerUnpacksIt(t *testing.T) {
	t.Parallel()
	d := sample(t)
	d.write("-rf", "a\nb", `"q"`, "'", " ", "ü", strings.Repeat("x", 255), "...", "deep/a/b/c", ".hidden/x")
	d.link("../../b/../c"[:6], "deep/a/up")
	raw := archive(t, pack.Options{Dir: d.path})
	out := t.TempDir()
	_, err := runner.Unzip(t.Context(), bytes.NewReader(raw), int64(len(raw)), out, runner.UnzipLimits{Links: true})
	require.NoError(t, err)
	require.Equal(t, raw, archive(t, pack.Options{Dir: out}))
	content, err := os.ReadFile(filepath.Join(out, "bin", "link"))
	require.NoError(t, err)
	require.Equal(t, "package main", string(content))
	info, err := os.Stat(filepath.Join(out, "bin", "tool"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode())
}

// What is refused here, no worker unpacks; what is not, every one.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		target string
		ok     bool
	}{
		{"x", true},
		{"../x", true},
		{"..", true},
		{"../..", true},
		{"../../x", true},
		{"a/b", true},
		{"./x", true},
		{"../../../x", false},
		{"../../..", false},
		{"/etc/passwd", false},
		{"a/../x", false},
		{"../a/..", false},
		{`..\x`, false},
	} {
		t.Run(fmt.Sprintf("%.20q", tt.target), func(t *testing.T) {
			t.Parallel()
			d := newDir(t)
			d.write("a/b/f")
			d.link(tt.target, "a/b/l")
			var out bytes.Buffer
			err := list(t, pack.Options{Dir: d.path}).Write(t.Context(), &out, nil)
			if !tt.ok {
				require.ErrorContains(t, err, "a/b/l: no worker unpacks a link to ")
				return
			}
			require.NoError(t, err)
			_, err = runner.Unzip(t.Context(), bytes.NewReader(out.Bytes()), int64(out.Len()), t.TempDir(), runner.UnzipLimits{Links: true})
			require.NoError(t, err)
		})
	}
}

const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

func TestPointersOfLFS(t *testing.T) {
	t.Parallel()
	d := newRepository(t, "a.psd="+pointer, "b="+pointer+"ext-0-foo sha256:4d7a\n", "README=version https://git-lfs.github.com/spec/v1\nis how it begins", "large="+pointer+strings.Repeat("x", 1024), ".gitattributes=*.psd filter=lfs\n")
	tree := list(t, pack.Options{Dir: d.path})
	err := tree.Write(t.Context(), io.Discard, nil)
	require.EqualError(t, err, "pointers of Git LFS are there instead of files: a.psd, b. git lfs pull fetches the files; --allow-lfs-pointers packs the pointers, .taktignore leaves them out")
	require.Equal(t, cli.ExitUsage, cli.ExitCode(err))
	require.Contains(t, contents(t, archive(t, pack.Options{Dir: d.path, LFSPointers: true})), "a.psd="+pointer)
	d.write("a.psd=the file", ".taktignore=b\n")
	archive(t, pack.Options{Dir: d.path})
}

// A file that changes while it is packed ends it: a build of half a file would be worse.
func TestChangesWhilePacked(t *testing.T) {
	t.Parallel()
	large := "large=" + strings.Repeat("x", 1<<20)
	tests := []struct {
		name   string
		change func(d dir) // after the list, or, if late, in the middle of the file large
		late   bool
		ok     bool
	}{
		{"nothing", func(dir) {}, false, true},
		{"it was longer when it was listed", func(d dir) { d.write("large=x") }, false, true},
		{"it is gone", func(d dir) { d.remove("large") }, false, false},
		{"its directory is gone", func(d dir) { d.remove("sub") }, false, false},
		{"its directory has become a link out of the source", func(d dir) {
			outside := newDir(d.t)
			outside.write("file")
			d.remove("sub")
			d.link(outside.path, "sub")
		}, false, false},
		{"it has become a link to another file of the source", func(d dir) { d.remove("large"); d.link("sub/file", "large") }, false, false},
		{"it has become a directory", func(d dir) { d.remove("large"); d.at("large") }, false, false},
		{"it has become a link", func(d dir) { d.remove("large"); d.link("/etc/passwd", "large") }, false, false},
		{"it has become a pipe", func(d dir) {
			d.remove("large")
			require.NoError(d.t, syscall.Mkfifo(filepath.Join(d.path, "large"), 0o600))
		}, false, false},
		{"a link has become a file", func(d dir) { d.remove("link"); d.write("link") }, false, false},
		{"it grows", func(d dir) {
			f, err := os.OpenFile(filepath.Join(d.path, "large"), os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(d.t, err)
			defer f.Close()
			_, err = f.WriteString("more")
			require.NoError(d.t, err)
		}, true, false},
		{"it shrinks", func(d dir) { require.NoError(d.t, os.Truncate(filepath.Join(d.path, "large"), 1<<19)) }, true, false},
		{"it is written again", func(d dir) { d.write(large) }, true, false},
		{"another one takes its name", func(d dir) { d.remove("large"); d.write("large=x") }, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := newDir(t)
			d.write(large, "sub/file")
			d.link("large", "link")
			require.NoError(t, os.Chtimes(filepath.Join(d.path, "large"), time.Time{}, time.Unix(1, 0)))
			tree := list(t, pack.Options{Dir: d.path})
			once := func() {
				if tt.change != nil {
					tt.change(d)
				}
				tt.change = nil
			}
			if !tt.late {
				once()
			}
			err := tree.Write(t.Context(), io.Discard, func(done, _ int64) {
				if done < 1<<20 {
					once()
				}
			})
			if tt.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, " changed while it was packed. Submit again when nothing writes to it, or leave it out with .taktignore")
			require.Equal(t, cli.ExitFailure, cli.ExitCode(err))
		})
	}
}

func TestAFileWithoutEnd(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	d.write("log=first line")
	f, err := os.OpenFile(filepath.Join(d.path, "log"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	defer f.Close()
	reads := 0
	err = list(t, pack.Options{Dir: d.path}).Write(t.Context(), io.Discard, func(int64, int64) {
		if reads++; reads < 1000 {
			_, _ = f.WriteString("another line")
		}
	})
	require.ErrorContains(t, err, "log changed while it was packed")
	require.Less(t, reads, 10, "it was not read on")
}

func noise(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw)
	return string(raw)
}

func TestPackingStops(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	d.write("ios/Pods/A/lib="+noise(3<<20), "ios/Pods/B/lib="+noise(2<<20), "ios/app="+noise(1<<20), "video.mov="+noise(1<<20), "docs/a/b/film="+noise(1<<20), "src/x="+noise(100<<10), "src/y="+noise(100<<10))
	tree := list(t, pack.Options{Dir: d.path})
	_, err := tree.WriteFile(t.Context(), 4<<20, nil)
	require.EqualError(t, err, d.path+` is more than the 4.0 MiB that a source may have. Leave out what the build does not need, with .gitignore or .taktignore. The heaviest:
    6.0 MiB  3 files  ios/
    5.0 MiB  2 files  ios/Pods/
    3.0 MiB  1 file  ios/Pods/A/lib
    2.0 MiB  1 file  ios/Pods/B/lib
    1.0 MiB  1 file  docs/a/b/film
    1.0 MiB  1 file  video.mov
    200 KiB  2 files  src/`)
	require.Equal(t, cli.ExitUsage, cli.ExitCode(err))

	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	var seen, total int64
	_, err = tree.WriteFile(ctx, 1<<30, func(done, of int64) {
		seen, total = done, of
		cancel(interrupted)
	})
	require.ErrorIs(t, err, interrupted)
	require.Less(t, seen, int64(1<<20), "inside of the file")
	require.Equal(t, tree.Bytes(), total)
	_, err = pack.List(ctx, pack.Options{Dir: d.path})
	require.ErrorIs(t, err, interrupted)
}

func TestLeftOut(t *testing.T) {
	t.Parallel()
	d := newRepository(t, ".gitignore=*.log\nmods/\n.env\n", "src/a")
	d.write("mods/a=12345", "mods/deep/b=123", "mods/deep/c", "src/big.log="+strings.Repeat("x", 100), "src/.env=1", "only/x.log=12", "docs/x=1234")
	d.write(".taktignore=docs\n")
	d.at("src/empty")
	other := d.at("other")
	other.git("init", "-q")
	other.write("x", "y.o=1234567", ".gitignore=*.o\n")
	tree := list(t, pack.Options{Dir: d.path})
	all, total := tree.LeftOut()
	require.Equal(t, []pack.Weight{
		{Name: "src/big.log", Files: 1, Bytes: 100},
		{Name: "mods/", Files: 3, Bytes: 8},
		{Name: "other/y.o", Files: 1, Bytes: 7},
		{Name: "docs/", Files: 1, Bytes: 4},
		{Name: "only/", Files: 1, Bytes: 2},
		{Name: "src/.env", Files: 1, Bytes: 1},
	}, all)
	require.Equal(t, pack.Weight{Files: 8, Bytes: 122}, total)
	all, _ = list(t, pack.Options{Dir: d.path, All: true}).LeftOut()
	require.Empty(t, all)
}

func TestSecretsAndCollisions(t *testing.T) {
	t.Parallel()
	d := newDir(t)
	d.write(".env", ".env.local", ".env.example", "ios/Dist.P12", "android/app/debug.keystore", "android/app/release.keystore", "id_rsa", "id_rsa.pub", "id_generator.go", "AuthKey_X.p8",
		"environment", "environment.ts", "src/keys.ts", "api-service-account-7.json", "a/B/c", "a/b/c", "a/b/d", "A", "Dup", "dup")
	tree := list(t, pack.Options{Dir: d.path})
	require.Equal(t, []string{".env", ".env.local", "AuthKey_X.p8", "android/app/release.keystore", "api-service-account-7.json", "id_rsa", "ios/Dist.P12"}, tree.Secrets())
	require.Equal(t, []string{"A and a", "a/B/c and a/b/c", "Dup and dup"}, tree.Collisions())
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"a/b-c.d": "a/b-c.d", "": `""`, "a b": `"a b"`, "a\nb": `"a\nb"`, `a"b`: `"a\"b"`, "ü": "ü", "a\x1b[31m": `"a\x1b[31m"`, "a\xffb": `"a\xffb"`, "a,b": `"a,b"`, "a\u202eb": `"a\u202eb"`,
	} {
		require.Equal(t, want, pack.Quote(name))
	}
}
