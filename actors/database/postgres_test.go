package database

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
)

// lineWriter is a log that a test reads.
type lineWriter chan string

func (w lineWriter) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}

func TestPostgresServes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := serve(t, config(dir))
	query(t, b.pg, "CREATE TABLE kept (x text)")
	query(t, b.pg, "INSERT INTO kept VALUES ('yes')")

	t.Run("with takt's settings and durability", func(t *testing.T) { // builds on the step before
		for name, want := range map[string]string{
			"fsync": "on", "synchronous_commit": "on", "listen_addresses": "", "max_connections": "100",
			"jit": "off", "server_encoding": "UTF8", "password_encryption": "scram-sha-256",
		} {
			require.Equal(t, want, query(t, b.pg, "SHOW "+name), name)
		}
	})
	t.Run("and lets nobody in without the password", func(t *testing.T) { // builds on the step before
		hba := must(os.ReadFile(filepath.Join(dir, clusterName, "pg_hba.conf")))(t)
		for line := range strings.Lines(string(hba)) {
			if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(line, "#") {
				require.Equal(t, "scram-sha-256", fields[len(fields)-1], line)
			}
		}
		info := must(os.Stat(filepath.Join(dir, passwordFileName)))(t)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	})
	t.Run("stops in order and starts on what is there", func(t *testing.T) { // builds on the step before
		b.stop(t)
		require.Empty(t, serversIn(clusterInfo(t, dir)))
		require.NoFileExists(t, filepath.Join(dir, clusterName, pidFileName))
		_, err := b.pg.ConnConfig(t.Context())
		require.ErrorIs(t, err, ErrNotRunning)

		again := serve(t, config(dir))
		require.Equal(t, "yes", query(t, again.pg, "SELECT x FROM kept"))
		again.stop(t)
	})
	t.Run("and makes a new password when the file was lost", func(t *testing.T) { // builds on the step before
		require.NoError(t, os.Remove(filepath.Join(dir, passwordFileName)))
		again := serve(t, config(dir))
		require.Equal(t, "yes", query(t, again.pg, "SELECT x FROM kept"))
	})
}

func TestPostgresKilled(t *testing.T) {
	t.Parallel()
	dir := made(t)
	b := serve(t, config(dir))
	query(t, b.pg, "CREATE TABLE kept AS SELECT 'yes' AS x")
	before := serverPID(t, dir)
	killServer(t, dir)
	soon(t, "a new server", func() bool {
		lock, _ := os.ReadFile(filepath.Join(dir, clusterName, pidFileName))
		f := parsePIDFile(string(lock))
		return f.PID != 0 && f.PID != before && f.Status == "ready"
	})
	require.Equal(t, "yes", query(t, b.pg, "SELECT x FROM kept"))
}

func TestPostgresOrphan(t *testing.T) {
	t.Parallel()
	t.Run("that answers is adopted, watched and stopped", func(t *testing.T) {
		t.Parallel()
		dir := made(t)
		helper := startHelper(t, dir, "ready")
		pid := serverPID(t, dir)
		kill9(t, helper)
		b := serve(t, config(dir))
		require.Equal(t, pid, serverPID(t, dir))
		require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))

		killServer(t, dir)
		soon(t, "the adopted server's end to be seen", func() bool {
			lock, _ := os.ReadFile(filepath.Join(dir, clusterName, pidFileName))
			f := parsePIDFile(string(lock))
			return f.PID != 0 && f.PID != pid && f.Status == "ready"
		})
		require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))
		b.stop(t)
		require.Empty(t, serversIn(clusterInfo(t, dir)))
	})
	t.Run("that is adopted logs to the new takt and stops in order", func(t *testing.T) {
		t.Parallel()
		dir := made(t)
		kill9(t, startHelper(t, dir, "ready"))
		lines := make(chan string, 1000)
		b := &fixture{sys: otp.New(otp.Options{Logger: zerolog.New(lineWriter(lines))}), pg: NewPostgres(config(dir)), dir: dir}
		require.NoError(t, b.start(t))
		query(t, b.pg, "DO $$ BEGIN RAISE WARNING 'heard again'; END $$")
		for !strings.Contains(<-lines, "heard again") {
			continue
		}
		b.stop(t)
		require.Empty(t, serversIn(clusterInfo(t, dir)))
		require.NoFileExists(t, filepath.Join(dir, clusterName, pidFileName))
	})
	t.Run("with other settings is stopped and started anew", func(t *testing.T) {
		t.Parallel()
		dir := made(t)
		kill9(t, startHelper(t, dir, "ready"))
		pid := serverPID(t, dir)
		require.NoError(t, os.WriteFile(filepath.Join(dir, clusterName, settingsFileName), []byte("# of an older takt\n"), 0o600))
		b := serve(t, config(dir))
		require.NotEqual(t, pid, serverPID(t, dir))
		require.Equal(t, "off", query(t, b.pg, "SHOW jit"))
	})
	t.Run("whose takt died while making the cluster leaves nothing half-made", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		helper := startHelper(t, dir, "begun")
		soon(t, "initdb to be at work", func() bool {
			drafts, _ := filepath.Glob(filepath.Join(dir, draftPrefix+"*", "base"))
			return len(drafts) > 0
		})
		kill9(t, helper)
		require.NoDirExists(t, filepath.Join(dir, clusterName))
		b := serve(t, config(dir))
		require.Equal(t, "1", query(t, b.pg, "SELECT '1'"))
		require.Empty(t, must(filepath.Glob(filepath.Join(dir, draftPrefix+"*")))(t))
	})
}
