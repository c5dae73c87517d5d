package recovery

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/storage/inventory"
	"takt/storage/s3test"
	"takt/store"
)

// storage runs a storage command on the data of c, and returns its exit status,
// findings and summary.
func storage(env *takttest.Env, c *process.Controller, settings []string, args ...string) (code int, found []inventory.Finding, sum inventory.Migrated) {
	env.T.Helper()
	p := launchStorage(env, c, settings, args...)
	<-p.Done()
	for line := range strings.Lines(p.Output()) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var m struct {
			inventory.Finding
			Summary *inventory.Migrated
			Title   string // of the error at the end
		}
		require.NoError(env.T, json.Unmarshal([]byte(line), &m), line)
		if m.Summary != nil {
			sum = *m.Summary
		} else if m.Title == "" {
			found = append(found, m.Finding)
		}
	}
	if p.Failure() == nil {
		return 0, found, sum
	}
	env.T.Log(p.Tail())
	return p.ExitCode(), found, sum
}

func launchStorage(env *takttest.Env, c *process.Controller, settings []string, args ...string) *process.Process {
	env.T.Helper()
	p, err := env.Launch(strings.Join(args, ""), append(settings, "TAKT_DATA_DIR="+c.DataDir),
		append(append([]string{"storage"}, args...), "--json")...)
	require.NoError(env.T, err)
	return p
}

func TestStorageCommandsWithAndWithoutARunningController(t *testing.T) {
	t.Parallel()
	env, server := takttest.NewEnv(t), s3test.Start(t)
	c := env.StartController("takt")
	var ids []string
	for i := range 6 {
		ids = append(ids, takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": fmt.Sprint("order ", i)})))
	}
	code, found, _ := storage(env, c, nil, "verify", "--digest")
	require.Zero(t, code)
	require.Empty(t, found)
	code, _, _ = storage(env, c, nil, "migrate", "--to", "s3")
	require.Equal(t, 2, code, "no S3 is configured")

	// Killed as soon as something has been copied, and run again.
	victim := launchStorage(env, c, server.Env(), "migrate", "--to", "s3", "--prune")
	takttest.Eventually(t, "it has begun", func() bool { return len(server.Objects()) > 0 || !victim.Alive() })
	victim.Kill()
	code, _, sum := storage(env, c, server.Env(), "migrate", "--to", "s3", "--prune")
	require.Zero(t, code)
	require.EqualValues(t, 6, sum.Files)
	require.LessOrEqual(t, len(takttest.Files(t, c)), 1, "what the killed one had taken out of its row, at worst")
	require.NoError(t, c.Stop(context.WithoutCancel(t.Context()), takttest.Patience))

	// Stopped: the commands run the database themselves. One kept object is spoilt.
	code, found, _ = storage(env, c, server.Env(), "verify", "--digest")
	require.Zero(t, code)
	for _, f := range found {
		require.Equal(t, inventory.Unnamed, f.Problem, "of the killed one, at worst")
	}
	code, _, sum = storage(env, c, server.Env(), "migrate", "--to", "local")
	require.Zero(t, code)
	require.EqualValues(t, 6, sum.Copied)
	require.NoError(t, os.WriteFile(filepath.Join(c.DataDir, "files", "builds", ids[2], "source.zip"), []byte("spoilt"), 0o600))
	code, found, _ = storage(env, c, server.Env(), "verify")
	require.Equal(t, 1, code)
	require.Len(t, found, 1)
	require.Equal(t, inventory.Damaged, found[0].Problem)
	require.Equal(t, ids[2], found[0].Build)

	again := env.StartController("takt", append(server.Env(), "TAKT_STORAGE=s3")...)
	env.StartWorker(again, "one", takttest.CopyOrder)
	for i, id := range ids {
		takttest.Eventually(t, "build completes", func() bool { return takttest.Status(t, again, id).Status == string(store.Completed) })
		require.Equal(t, fmt.Sprint("order ", i), takttest.Download(t, again, id))
	}
}
