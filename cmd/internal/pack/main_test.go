package pack_test

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"takt/cmd/internal/pack"
	"takt/store/storetest/needs"
)

// listed is the variable that makes the test binary list a directory, as a hook of git would run takt.
const listed = "PACK_TEST_LIST"

func TestMain(m *testing.M) {
	if dir := os.Getenv(listed); dir != "" {
		tree, err := pack.List(context.Background(), pack.Options{Dir: dir})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(names(tree), tree.Commit.Branch)
		os.Exit(0)
	}
	home, err := os.MkdirTemp("", "pack-test-")
	must(err)
	config := filepath.Join(home, "gitconfig")
	must(os.WriteFile(config, []byte("[user]\nname = A\nemail = a@example.com\n[init]\ndefaultBranch = main\n[protocol \"file\"]\nallow = always\n[advice]\naddEmbeddedRepo = false\n"), 0o600))
	must(os.Setenv("GIT_CONFIG_GLOBAL", config))
	must(os.Setenv("GIT_CONFIG_NOSYSTEM", "1"))
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(home)
		os.Exit(code)
	}))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// dir is a directory that a test fills.
type dir struct {
	t    *testing.T
	path string
}

func newDir(t *testing.T) dir {
	t.Helper()
	return dir{t, t.TempDir()}
}

// newRepository returns the working tree of a new repository with a first commit of these files.
func newRepository(t *testing.T, files ...string) dir {
	t.Helper()
	needs.Git(t)
	d := newDir(t)
	d.git("init", "-q")
	d.write(files...)
	d.git("add", "-A")
	d.git("commit", "-q", "--allow-empty", "-m", "first")
	return d
}

// at returns a directory below d.
func (d dir) at(name string) dir {
	d.t.Helper()
	path := filepath.Join(d.path, name)
	require.NoError(d.t, os.MkdirAll(path, 0o755))
	return dir{d.t, path}
}

// write writes files: "name" or "name=content".
func (d dir) write(files ...string) {
	d.t.Helper()
	for _, file := range files {
		name, content, _ := strings.Cut(file, "=")
		path := filepath.Join(d.path, name)
		require.NoError(d.t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(d.t, os.WriteFile(path, []byte(content), 0o644))
	}
}

func (d dir) link(target, name string) {
	d.t.Helper()
	require.NoError(d.t, os.Symlink(target, filepath.Join(d.path, name)))
}

func (d dir) remove(name string) {
	d.t.Helper()
	require.NoError(d.t, os.RemoveAll(filepath.Join(d.path, name)))
}

func (d dir) git(args ...string) string {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), "git", args...)
	cmd.Dir = d.path
	out, err := cmd.CombinedOutput()
	require.NoError(d.t, err, "git %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// script writes a program that leaves a file behind when it runs, and returns both.
func (d dir) script(name string) (program, ran string) {
	d.t.Helper()
	ran = filepath.Join(d.t.TempDir(), "ran")
	program = filepath.Join(d.path, name)
	require.NoError(d.t, os.WriteFile(program, []byte("#!/bin/sh\ntouch "+ran+"\ncat\n"), 0o755))
	return program, ran
}

// names returns the files and links of a source, in its order.
func names(tree *pack.Tree) (all []string) {
	for _, e := range tree.Entries {
		if !e.Mode.IsDir() {
			all = append(all, e.Name)
		}
	}
	return all
}

func list(t *testing.T, o pack.Options) *pack.Tree {
	t.Helper()
	tree, err := pack.List(t.Context(), o)
	require.NoError(t, err)
	return tree
}

// archive packs a source, and returns the archive.
func archive(t *testing.T, o pack.Options) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, list(t, o).Write(t.Context(), &out, nil))
	return out.Bytes()
}

// contents returns what an archive has: "name=content", "name/" and "name->target".
func contents(t *testing.T, raw []byte) (all []string) {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
	require.NoError(t, err)
	for _, f := range z.File {
		r, err := f.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(r)
		require.NoError(t, err)
		switch {
		case f.Mode().IsDir():
			all = append(all, f.Name)
		case f.Mode()&fs.ModeSymlink != 0:
			all = append(all, f.Name+"->"+string(content))
		default:
			all = append(all, f.Name+"="+string(content))
		}
	}
	return all
}
