package operating

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/client"
)

// requireNotInBundle has takt debug bundle write all that it knows of a controller.
func (s secrets) requireNotInBundle(t *testing.T, c *process.Controller, file string) {
	t.Helper()
	_, err := c.Client.Operate(t.Context(), client.Order{Action: "restart", Path: "orchestration/janitor", Reason: "for the bundle"})
	require.NoError(t, err)
	var out bytes.Buffer
	root := command.New(takttest.Environment("TAKT_URL", c.URL, "TAKT_API_KEY", c.APIKey, "TAKT_ADMIN_KEY", c.AdminKey))
	require.Zero(t, cli.Execute(t.Context(), root, []string{"debug", "bundle", "-o", file, "--record", "1s"}, &out, &out), out.String())
	files := takttest.UnpackBundle(t, file)
	require.NotContains(t, files, "errors.txt")
	for name, part := range map[string]string{
		"tree.json": `"takt/database/pool"`, "metrics.txt": "takt_queue_pending_builds", "build.json": `"-compiler"`,
		"settings.json": `"s3_secret_key": "********"`, "log.jsonl": `"message"`, "database.json": `"relname": "builds"`,
		"goroutines.txt": "goroutine 1 [", "heap.pprof": "inuse_space", "cpu.pprof": "nanoseconds", "supervision.jsonl": `"path":"takt/database/pool"`,
	} {
		require.Contains(t, files[name], part, name)
	}
	for name, content := range files {
		s.requireAbsent(t, name, content)
	}
}
