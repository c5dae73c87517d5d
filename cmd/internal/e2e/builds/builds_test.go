package builds

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/takttest"
	"takt/http/client"
	"takt/store"
)

func TestWorkersBuildWhatWasSubmitted(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	env.StartWorker(c, "one", takttest.CopyOrder)
	env.StartWorker(c, "two", takttest.CopyOrder)
	orders := map[string]string{}
	for i := range 10 {
		order := fmt.Sprintf("order %d", i)
		orders[takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": order}))] = order
	}
	for id, order := range orders {
		takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })
		require.Equal(t, order, takttest.Download(t, c, id))
		logs, err := c.Client.Logs(t.Context(), id, client.BuildAuth{}, client.LogsAfter{})
		require.NoError(t, err)
		require.Equal(t, "Build submitted", logs.Logs[0].Message)
		require.Contains(t, takttest.Messages(logs), "built")
		require.Contains(t, takttest.Messages(logs), "Build completed successfully")
	}
}

func TestUploadOfOneGibibyteNeedsLittleMemory(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	var err error
	env.Dir, err = os.MkdirTemp(takttest.Disk, "takt-upload-") //nolint:usetesting // t.TempDir is in memory
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(env.Dir)) })
	c := env.StartController("takt")
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	w := takttest.Register(t, c, 1)
	require.Equal(t, id, w.Poll(t).ID)
	file := filepath.Join(env.Dir, "result.bin")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("takt"), 1<<20), 0o600))
	require.NoError(t, os.Truncate(file, 1<<30))
	content, err := client.File(file)
	require.NoError(t, err)

	_, before, err := c.Resident()
	require.NoError(t, err)
	_, err = c.Client.Upload(t.Context(), client.Upload{Held: client.Held{BuildID: id, WorkerID: w.ID, Attempt: 1}, Success: true, Result: &content})
	require.NoError(t, err)

	_, after, err := c.Resident()
	require.NoError(t, err)
	require.Less(t, after-before, 64<<20)
	require.Equal(t, string(store.Completed), takttest.Status(t, c, id).Status)
	st, err := os.Stat(filepath.Join(c.DataDir, "files", "builds", id, "result.apk"))
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, st.Size())
}

// Who interrupts a follower ends only the command.
func TestAnInterruptedFollowerLeavesTheBuild(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	w := takttest.Register(t, c, 1)
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	require.Equal(t, id, w.Poll(t).ID)
	p, err := env.Launch("follower", []string{"TAKT_URL=" + c.URL, "TAKT_API_KEY=" + c.APIKey}, "logs", "-f", id)
	require.NoError(t, err)
	takttest.Eventually(t, "it follows", func() bool { return strings.Contains(p.Output(), "Assigned to worker") })
	require.NoError(t, p.Signal(os.Interrupt))
	<-p.Done()
	require.Equal(t, cli.ExitInterrupted, p.ExitCode())
	require.Contains(t, p.Output(), "build "+id+" goes on: takt logs -f "+id+" follows it, takt cancel "+id+" cancels it")
	status, err := c.Client.Status(t.Context(), id, client.BuildAuth{})
	require.NoError(t, err)
	require.Equal(t, string(store.Assigned), status.State)
}
