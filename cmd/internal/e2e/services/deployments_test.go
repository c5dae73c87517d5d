package services

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/githubtest"
	"takt/store"
	"takt/store/storetest/needs"
)

// takt is killed ten times while it copies two hundred repositories. In the end
// every branch and tag is there, each repository once, and nothing on the disk. The
// credential was in no argument and no log.
func TestDeploymentSurvivesKills(t *testing.T) {
	t.Parallel()
	repos, kills := needs.Repeat(80, 200), needs.Repeat(5, 10)
	env := takttest.NewEnv(t)
	forge, settings := takttest.NewForge(t, repos)
	gate := takttest.NewPushGate()
	forge.Intercept(gate.Intercept)
	settings = append(settings, "TAKT_LOG=debug,json")
	c := env.StartController("controller", settings...)
	d, err := c.Client.Deploy(t.Context(), api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"}, Token: githubtest.Token})
	require.NoError(t, err)
	for i := range kills {
		gate.Open((i + 1) * repos / (kills + 2)) // so that it can't be done before the last of them
		takttest.Eventually(t, "it comes on", func() bool {
			requireInNoCommand(t, githubtest.Token)
			d, err = c.Client.Deployment(t.Context(), d.ID, false)
			require.NoError(t, err)
			return d.Counts.Total-d.Counts.Left() > i*repos/(kills+2)
		})
		require.False(t, d.Ended(), "it is still under way")
		c.Kill()
		require.NotContains(t, c.Output(), githubtest.Token)
		c = env.StartController("controller", settings...)
	}
	gate.Open(repos)
	takttest.Eventually(t, "it is done", func() bool {
		d, err = c.Client.Deployment(t.Context(), d.ID, true)
		require.NoError(t, err)
		return d.Ended()
	})
	require.NotContains(t, fmt.Sprintf("%+v", d), githubtest.Token)
	for _, r := range d.Repos {
		require.Nil(t, r.Error, "%+v", r)
	}
	require.Equal(t, "done", d.State)
	require.Equal(t, repos, d.Counts.Done, "%+v", d.Counts)
	require.Equal(t, forge.Names("from"), forge.Names("to"), "no other copies")
	attempts := 0
	for _, r := range d.Repos {
		require.Equal(t, githubtest.RefsOf(t, forge.Dir("from", r.Name)), githubtest.RefsOf(t, forge.Dir("to", r.Name)), r.Name)
		made, _ := forge.Find("to", r.Name)
		require.Equal(t, "about "+r.Name, made.Description)
		attempts += r.Attempts
	}
	require.Greater(t, attempts, repos, "some were interrupted")
	left, err := os.ReadDir(filepath.Join(c.DataDir, "deployments"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// requireInNoCommand looks at the arguments of every process.
func requireInNoCommand(t *testing.T, secret string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range files {
		args, _ := os.ReadFile(f) // of one that is gone there is nothing
		require.NotContains(t, string(args), secret)
	}
}
