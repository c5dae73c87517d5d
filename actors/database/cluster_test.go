package database

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPostgresLockFile(t *testing.T) {
	t.Parallel()
	dir := made(t)
	writePIDFile := func(t *testing.T, pid int) {
		t.Helper()
		info, ok := clusterInfo(t, dir).Sys().(*syscall.Stat_t)
		require.True(t, ok)
		for name, more := range map[string]string{pidFileName: "\n  5432001    196608\nready   \n", socketLockName(): ""} {
			path := filepath.Join(dir, clusterName, name)
			text := fmt.Sprintf("%d\n/proc/self/fd/3\n1700000000\n5432\n.\n", pid) + more
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			require.NoError(t, os.Chown(path, int(info.Uid), int(info.Gid)))
		}
	}
	// program is one of the server's user: PostgreSQL takes another user's for
	// none of its own.
	program := func(t *testing.T, name string, arg ...string) *exec.Cmd {
		t.Helper()
		info, ok := clusterInfo(t, dir).Sys().(*syscall.Stat_t)
		require.True(t, ok)
		cmd := exec.CommandContext(t.Context(), name, arg...)
		cmd.Dir = "/"
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: info.Uid, Gid: info.Gid}}
		}
		return cmd
	}
	// Each makes a lock file, and returns the process that must have its number until the end.
	for name, lock := range map[string]func(t *testing.T) *exec.Cmd{ // one directory for all
		"of a process that is gone": func(t *testing.T) *exec.Cmd {
			t.Helper()
			gone := program(t, "true")
			require.NoError(t, gone.Run())
			writePIDFile(t, gone.Process.Pid)
			return nil
		},
		"of a process that ended and that nobody collects": func(t *testing.T) *exec.Cmd {
			t.Helper()
			zombie := program(t, "true")
			require.NoError(t, zombie.Start())
			soon(t, "its end", func() bool { return !alive(zombie.Process.Pid) })
			return zombie
		},
		"whose number another program has now": func(t *testing.T) *exec.Cmd {
			t.Helper()
			other := program(t, "sleep", "600")
			require.NoError(t, other.Start())
			return other
		},
		"whose number another program in the same directory has": func(t *testing.T) *exec.Cmd {
			t.Helper()
			other := exec.CommandContext(t.Context(), "sleep", "600")
			other.Dir = filepath.Join(dir, clusterName)
			require.NoError(t, other.Start())
			return other
		},
		"that names takt itself": func(t *testing.T) *exec.Cmd {
			t.Helper()
			writePIDFile(t, os.Getpid())
			return nil
		},
		"that a power cut tore": func(t *testing.T) *exec.Cmd {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, clusterName, pidFileName), nil, 0o600))
			return nil
		},
	} {
		t.Run(name+" is removed", func(t *testing.T) {
			holder := lock(t)
			if holder != nil {
				writePIDFile(t, holder.Process.Pid)
			}
			b := serve(t, config(dir))
			require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))
			b.stop(t)
			if holder != nil {
				require.NoError(t, syscall.Kill(holder.Process.Pid, 0), "the number must be taken until here")
				_ = holder.Process.Kill() // the zombie has ended
				_ = holder.Wait()
			}
		})
	}
}

func TestClusterDirectory(t *testing.T) {
	t.Parallel()
	t.Run("with spaces, a long path and closed parents", func(t *testing.T) {
		t.Parallel()
		closed := filepath.Join(t.TempDir(), "closed to others")
		dir := filepath.Join(closed, strings.Repeat("a long name ", 12), "data dir")
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.Greater(t, len(dir), 107)
		b := serve(t, config(dir))
		require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))
		info := must(os.Stat(closed))(t)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
		b.stop(t)
		b = serve(t, config(dir))
		require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))
	})
	t.Run("is the only one that changes hands", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		serve(t, config(dir)).stop(t)
		entries := must(os.ReadDir(dir))(t)
		for _, entry := range entries {
			info := must(entry.Info())(t)
			stat, ok := info.Sys().(*syscall.Stat_t)
			require.True(t, ok)
			if os.Geteuid() == 0 && entry.Name() == clusterName {
				require.Contains(t, []string{"postgres", "nobody"}, must(user.LookupId(strconv.Itoa(int(stat.Uid))))(t).Username)
				require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
				continue
			}
			require.Equal(t, uint32(os.Geteuid()), stat.Uid, entry.Name())
		}
	})
	t.Run("that is empty is filled", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, clusterName), 0o700))
		require.NoError(t, os.MkdirAll(filepath.Join(dir, draftPrefix+"old", "base"), 0o700))
		serve(t, config(dir))
		require.NoDirExists(t, filepath.Join(dir, draftPrefix+"old"))
	})
	t.Run("that holds something else is left alone", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		letter := filepath.Join(dir, clusterName, "letter.txt")
		require.NoError(t, os.Mkdir(filepath.Dir(letter), 0o700))
		require.NoError(t, os.WriteFile(letter, []byte("dear"), 0o600))
		b := &fixture{sys: newSystem(t), pg: NewPostgres(config(dir)), dir: dir}
		require.ErrorContains(t, b.start(t), "move it away")
		require.FileExists(t, letter)
	})
	t.Run("of another version is refused with the way out", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, clusterName), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, clusterName, "PG_VERSION"), []byte("12\n"), 0o600))
		b := &fixture{sys: newSystem(t), pg: NewPostgres(config(dir)), dir: dir}
		err := b.start(t)
		require.ErrorContains(t, err, "made by PostgreSQL 12")
		require.ErrorContains(t, err, "apt-get install postgresql-12")
	})
	t.Run("on a machine without PostgreSQL says how to install it", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		b := &fixture{sys: newSystem(t), pg: NewPostgres(PostgresConfig{DataDir: dir, Globs: []string{}}), dir: dir}
		err := b.start(t)
		require.ErrorIs(t, err, ErrNoBinaries)
		require.ErrorContains(t, err, "apt-get install postgresql")
		require.ErrorContains(t, err, "brew install postgresql@17")
	})
}

func TestDataDirLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := must(LockDataDir(dir))(t)
	_, err := LockDataDir(dir)
	require.ErrorContains(t, err, "process "+strconv.Itoa(os.Getpid()))
	require.NoError(t, first.Release())
	require.NoError(t, must(LockDataDir(dir))(t).Release())
}
