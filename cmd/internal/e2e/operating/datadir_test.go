package operating

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/tied"
)

// TestFilesAreTaktsOwnWhateverTheUmask starts takt with a umask that takes
// nothing away: what it makes is closed to others all the same.
func TestFilesAreTaktsOwnWhateverTheUmask(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	dir := filepath.Join(env.Dir, "data")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask 000; exec "$0" serve`, env.Takt)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Env = env.Environment("TAKT_DATA_DIR="+dir, "TAKT_LISTEN=127.0.0.1:0", "TAKT_LOG=error")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	wait, err := tied.Start(cmd)
	require.NoError(t, err)
	takttest.Eventually(t, "takt serves", func() bool { return process.ReadWord(filepath.Join(dir, "address")) != "" })
	c, err := client.New(client.Config{
		BaseURL: "http://" + process.ReadWord(filepath.Join(dir, "address")), APIKey: process.ReadWord(filepath.Join(dir, "api-key")),
	})
	require.NoError(t, err)
	defer c.CloseIdle()
	source := client.Bytes([]byte("source"))
	var sub api.Submitted
	takttest.Eventually(t, "takt takes a build", func() bool { // its new database may be slow
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
