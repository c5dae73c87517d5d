package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/tied"
)

func TestDataDirThatOthersCanChangeIsNotTrusted(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "data")
	var log bytes.Buffer
	require.NoError(t, openDataDir(dir, zerolog.New(&log)))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
	require.Empty(t, log.String())

	require.NoError(t, os.Chmod(dir, 0o750))
	require.NoError(t, openDataDir(dir, zerolog.New(&log)))
	require.Empty(t, log.String(), "names may be read")
	require.NoError(t, os.Chmod(dir, 0o770))
	require.NoError(t, openDataDir(dir, zerolog.New(&log)))
	require.Contains(t, log.String(), "group may write")
	require.NoError(t, os.Chmod(dir, 0o777))
	require.ErrorContains(t, openDataDir(dir, zerolog.New(&log)), "everybody may write")

	log.Reset()
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "api-key"), []byte("k"), 0o600))
	require.NoError(t, openDataDir(dir, zerolog.New(&log)))
	require.Empty(t, log.String())
	require.NoError(t, os.Chmod(filepath.Join(dir, "api-key"), 0o644))
	require.NoError(t, openDataDir(dir, zerolog.New(&log)))
	require.Contains(t, log.String(), "can be read by others")
}

// TestFilesAreTaktsOwnWhateverTheUmask starts takt with a umask that takes
// nothing away: what it makes is closed to others all the same.
func TestFilesAreTaktsOwnWhateverTheUmask(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := filepath.Join(s.Dir, "data")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask 000; exec "$0" serve`, s.Takt)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = s.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=error")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	c, err := client.New(client.Config{
		BaseURL: "http://" + process.ReadWord(filepath.Join(dir, "address")), APIKey: process.ReadWord(filepath.Join(dir, "api-key")),
	})
	require.NoError(t, err)
	defer c.CloseIdle()
	source := client.Bytes([]byte("source"))
	var sub api.Submitted
	eventually(t, "takt takes a build", func() bool { // its new database may be slow
		sub, err = c.Submit(t.Context(), client.Submit{Platform: store.IOS, Source: source, Certs: &source})
		return err == nil
	})
	require.FileExists(t, filepath.Join(dir, "files", "builds", sub.ID, "certs.zip"))

	seen := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) { // a file of the database server that just went
			return nil
		}
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && d.Type()&fs.ModeSymlink == 0 && d.Type()&fs.ModeSocket == 0 && d.Name() != "address" {
			seen++
			require.Zero(t, info.Mode().Perm()&0o077, "%s: %s", path, info.Mode())
		}
		return nil
	}))
	require.Greater(t, seen, 20)
	cancel(nil)
	_ = wait() // it says that the context ended
	require.True(t, cmd.ProcessState.Success(), out.String())
}

// A new installation refuses keys that are easy to guess; one that has them goes on and warns.
func TestGuessableKeysAreRefusedOnce(t *testing.T) {
	t.Parallel()
	random, plain := base64.StdEncoding.EncodeToString([]byte(rand.Text()[:26]+"h7Gk2p")), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("password"), 4))
	for name, c := range map[string]Config{
		"api-key":        {APIKey: "my-secret-api-key-1", AdminKey: rand.Text(), EncryptionKey: random},
		"admin-key":      {APIKey: rand.Text(), AdminKey: "takt-admin-0123456789", EncryptionKey: random},
		"encryption-key": {APIKey: rand.Text(), AdminKey: rand.Text(), EncryptionKey: plain},
	} {
		var log bytes.Buffer
		c.DataDir = t.TempDir()
		err := c.checkGuessable(zerolog.New(&log))
		require.ErrorContains(t, err, name+": this key is easy to guess", name)
		require.Empty(t, log.String())
		if name == "api-key" {
			c.Listen, c.Log = "127.0.0.1:0", "error"
			require.ErrorContains(t, serve(t.Context(), c, io.Discard), "easy to guess")
		}
		require.NoError(t, os.MkdirAll(filepath.Join(c.DataDir, "postgres"), 0o700))
		require.NoError(t, c.checkGuessable(zerolog.New(&log)))
		require.Contains(t, log.String(), `"key":"`+name+`"`)
		require.NoError(t, os.Remove(filepath.Join(c.DataDir, "postgres")))
		c.DatabaseURL = "postgres://elsewhere"
		require.NoError(t, c.checkGuessable(zerolog.Nop()), "whose installation may be old")
	}
	c := Config{DataDir: t.TempDir(), APIKey: rand.Text(), AdminKey: rand.Text(), EncryptionKey: random}
	require.NoError(t, c.checkGuessable(zerolog.Nop()))
}

func TestRekeyRefusesAGuessableKey(t *testing.T) {
	t.Parallel()
	cmd := newRekeyCommand()
	cmd.SetArgs([]string{"--data-dir", t.TempDir(), "--encryption-key", base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("password"), 4))})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	require.ErrorContains(t, cmd.ExecuteContext(t.Context()), "the new key is easy to guess")
}
