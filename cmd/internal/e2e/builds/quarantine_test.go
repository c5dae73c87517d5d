package builds

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// A worker whose container engine fails gives its build back. It is quarantined until an
// operator resumes it, and another one runs the build.
func TestAWorkerWithABrokenEngineIsQuarantined(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_QUARANTINE=1/10")
	engine := filepath.Join(t.TempDir(), "podman")
	repair := func(run string) {
		script := "#!/bin/sh\ncase $1 in\nrun) " + run + " ;;\ncontainer) exit 125 ;;\nesac\n"
		require.NoError(t, os.WriteFile(engine+".new", []byte(script), 0o700))
		require.NoError(t, os.Rename(engine+".new", engine))
	}
	repair("echo 'Error: OCI runtime error' >&2; exit 126")
	p, err := env.Worker(c, "broken", "true", nil, "--image", "img", "--engine", engine)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.Stop(context.WithoutCancel(t.Context()), takttest.Patience))
		env.LogOnFailure("broken", p)
	})
	first := takttest.Submit(t, c, takttest.Zip(t, nil))
	takttest.Eventually(t, "it is quarantined", func() bool { return takttest.Fleet(t, c)["broken"].State == "quarantined" })
	broken := takttest.Fleet(t, c)["broken"]
	require.Equal(t, "1 of the last 1 attempts ended by this worker's own fault. The last one (engine): "+
		"container engine failed: exit code 126 Error: OCI runtime error", broken.Quarantine.Reason)
	require.Equal(t, "idle", broken.Status)
	require.Equal(t, "pending", takttest.Status(t, c, first).State)
	require.Contains(t, c.Output(), `"message":"worker quarantined"`)
	for _, line := range []string{`takt_workers{state="quarantined"} 1`, `takt_build_attempts_lost_total{reason="engine"} 1`, `takt_worker_steps_total{step="quarantined"} 1`} {
		takttest.Eventually(t, line, func() bool {
			text, err := c.Client.Metrics(t.Context())
			return err == nil && strings.Contains(text, "\n"+line+"\n")
		})
	}

	env.StartWorker(c, "healthy", `cp order.txt "$TAKT_OUTPUT"`)
	second := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
	takttest.Eventually(t, "the others go on", func() bool { return takttest.Status(t, c, second).State == string(store.Completed) })
	require.Equal(t, 2, takttest.Status(t, c, first).Attempt, "the second worker had it")
	require.Equal(t, "quarantined", takttest.Fleet(t, c)["broken"].State)

	_, err = client.Call(t.Context(), c.Client, api.DrainWorker, api.WorkerOrder{ID: api.WorkerID(takttest.Fleet(t, c)["healthy"].ID)})
	require.NoError(t, err)
	repair(`for arg; do case $arg in *:/takt/out) cp "$0" "${arg%:*}/result" ;; esac; done`)
	_, err = client.Call(t.Context(), c.Client, api.ResumeWorker, api.WorkerOrder{ID: api.WorkerID(broken.ID)})
	require.NoError(t, err)
	third := takttest.Submit(t, c, takttest.Zip(t, nil))
	takttest.Eventually(t, "it builds again", func() bool { return takttest.Status(t, c, third).State == string(store.Completed) })
	require.Equal(t, "idle", takttest.Fleet(t, c)["broken"].State)
}
