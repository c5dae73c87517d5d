package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/client"
	"takt/http/githubtest"
	"takt/store"
	"takt/store/storetest/needs"
)

// deployer is a forge with n repositories, and the settings of a controller for
// it.
func deployer(t *testing.T, n int) (*githubtest.Forge, []string) {
	t.Helper()
	needs.Server(t, "git")
	template, err := githubtest.Template(t.TempDir())
	require.NoError(t, err)
	f := githubtest.Start(t)
	f.Fill(t, "r", n, template)
	return f, []string{"TAKT_GITHUB_URL=" + f.URL, "TAKT_DEPLOY_PER_HOUR=1000000"}
}

// takt is killed ten times while it copies two hundred repositories. In the end
// every branch and tag is there, each repository once, and nothing on the disk.
func TestDeploymentSurvivesKills(t *testing.T) {
	t.Parallel()
	const repos, kills = 200, 10
	s := newSite(t)
	forge, settings := deployer(t, repos)
	gate := newPushGate()
	forge.Intercept(gate.intercept)
	c := s.controller("controller", settings...)
	d, err := c.Client.Deploy(t.Context(), api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"}, Token: githubtest.Token})
	require.NoError(t, err)
	for i := range kills {
		gate.open((i + 1) * repos / (kills + 2)) // so that it can't be done before the last of them
		eventually(t, "it comes on", func() bool {
			d, err = c.Client.Deployment(t.Context(), d.ID, false)
			require.NoError(t, err)
			return d.Counts.Total-d.Counts.Left() > i*repos/(kills+2)
		})
		require.False(t, d.Ended(), "it is still under way")
		c.Kill()
		c = s.controller("controller", settings...)
	}
	gate.open(repos)
	eventually(t, "it is done", func() bool {
		d, err = c.Client.Deployment(t.Context(), d.ID, true)
		require.NoError(t, err)
		return d.Ended()
	})
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

// The credential is in no argument, file or log while git works with it, and in
// no file afterwards.
func TestForgeCredentialIsNowhereToBeSeen(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	forge, settings := deployer(t, 6)
	c := s.controller("controller", append(settings, "TAKT_LOG=debug,json")...)
	d, err := c.Client.Deploy(t.Context(), api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"}, Token: githubtest.Token})
	require.NoError(t, err)
	commands := 0
	eventually(t, "it is done", func() bool {
		commands += requireNoSecret(t, githubtest.Token)
		d, err = c.Client.Deployment(t.Context(), d.ID, true)
		require.NoError(t, err)
		return d.Ended()
	})
	require.Equal(t, 6, d.Counts.Done)
	require.NotContains(t, c.Output(), githubtest.Token)
	require.NotContains(t, fmt.Sprintf("%+v", d), githubtest.Token)
	require.Positive(t, forge.Count("POST /git"))
	t.Logf("looked at the arguments of %d git commands", commands)
}

// requireNoSecret looks at the arguments of every process.
func requireNoSecret(t *testing.T, secret string) (git int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range files {
		args, err := os.ReadFile(f)
		if err != nil {
			continue // gone
		}
		require.NotContains(t, string(args), secret)
		if strings.HasPrefix(string(args), "git\x00") {
			git++
		}
	}
	return git
}

// The processes of a deployment come and go in the live tree.
func TestDeploymentIsSeenInTheTree(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	forge, settings := deployer(t, 3)
	c := s.controller("controller", settings...)
	hold := make(chan struct{})
	forge.Intercept(holdGit(hold))
	d, err := c.Client.Deploy(t.Context(), api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"}, Token: githubtest.Token})
	require.NoError(t, err)
	ids := func() (ids []string) {
		root, err := c.Client.Tree(t.Context(), client.TreeOptions{Path: "deployments", All: true})
		require.NoError(t, err)
		for _, sup := range root.Children {
			for _, child := range sup.Children {
				ids = append(ids, strings.TrimPrefix(child.Path, "takt/deployments/"))
				for _, part := range child.Children {
					ids = append(ids, strings.TrimPrefix(part.Path, "takt/deployments/"))
				}
			}
		}
		slices.Sort(ids)
		return ids
	}
	eventually(t, "all are there", func() bool {
		return slices.Equal(ids(), []string{
			"deployment_sup/" + d.ID, "deployment_sup/" + d.ID + "/state", "deployment_sup/" + d.ID + "/worker",
			"repo_sup/" + d.ID + ":r-000", "repo_sup/" + d.ID + ":r-001", "repo_sup/" + d.ID + ":r-002",
		})
	})
	begun := time.Now()
	d, err = c.Client.SteerDeployment(t.Context(), d.ID, "cancel")
	require.NoError(t, err)
	require.Equal(t, "cancelled", d.State)
	require.Equal(t, 3, d.Counts.Skipped)
	eventually(t, "all are gone", func() bool { return len(ids()) == 0 })
	t.Logf("gone after %s", time.Since(begun))
	close(hold)
}
