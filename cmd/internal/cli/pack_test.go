package cli_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/runner"
)

func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), mode))
}

// sample is a source tree with what makes packing hard.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), "package main", 0o644)
	write(t, filepath.Join(dir, "bin", "tool"), "#!/bin/sh", 0o755)
	write(t, filepath.Join(dir, ".git", "config"), "secret", 0o644)
	write(t, filepath.Join(dir, "sub", ".git"), "gitdir: elsewhere", 0o644)
	write(t, filepath.Join(dir, "sub", ".gitignore"), "x", 0o644)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	require.NoError(t, os.Symlink("../main.go", filepath.Join(dir, "bin", "link")))
	return dir
}

func TestPackDir(t *testing.T) {
	t.Parallel()
	dir := sample(t)
	var first, second bytes.Buffer
	require.NoError(t, cli.PackDir(t.Context(), dir, &first))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "main.go"), time.Now(), time.Now().Add(time.Hour)))
	require.NoError(t, cli.PackDir(t.Context(), dir, &second))
	require.Equal(t, first.Bytes(), second.Bytes(), "the same tree gives the same bytes")

	z, err := zip.NewReader(bytes.NewReader(first.Bytes()), int64(first.Len()))
	require.NoError(t, err)
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	require.Equal(t, []string{"bin/", "bin/link", "bin/tool", "empty/", "main.go", "sub/", "sub/.gitignore"}, names)

	// A worker takes it.
	out := t.TempDir()
	_, err = runner.Unzip(t.Context(), bytes.NewReader(first.Bytes()), int64(first.Len()), out, runner.UnzipLimits{Links: true})
	require.NoError(t, err)
	content, err := os.ReadFile(filepath.Join(out, "bin", "link"))
	require.NoError(t, err)
	require.Equal(t, "package main", string(content))
	info, err := os.Stat(filepath.Join(out, "bin", "tool"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode())
}

func TestPackingStops(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	noise := make([]byte, 4<<20)
	_, _ = rand.Read(noise)
	write(t, filepath.Join(dir, "noise"), string(noise), 0o644)
	_, err := cli.PackToFile(t.Context(), dir, 1<<20, nil)
	require.ErrorContains(t, err, "more than the 1.0 MiB that a source may have")
	require.Equal(t, cli.ExitUsage, cli.ExitCode(err))

	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	var seen int64
	_, err = cli.PackToFile(ctx, dir, 1<<30, func(done, _ int64) {
		seen = done
		cancel(interrupted)
	})
	require.ErrorIs(t, err, interrupted)
	require.Less(t, seen, int64(1<<20), "inside of the file")
}

func TestPackDirRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(dir string) error
	}{
		{"a link to the outside", func(dir string) error { return os.Symlink("../x", filepath.Join(dir, "l")) }},
		{"a link to a root", func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "l")) }},
		{"a pipe", func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "p"), 0o600) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, tt.make(dir))
			_, err := cli.PackToFile(t.Context(), dir, 1<<20, nil)
			require.Error(t, err)
		})
	}
}
