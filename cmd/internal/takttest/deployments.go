package takttest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/githubtest"
	"takt/store/storetest/needs"
)

// NewForge is a forge with n repositories, and the settings of a controller for
// it.
func NewForge(t *testing.T, n int) (*githubtest.Forge, []string) {
	t.Helper()
	needs.Git(t)
	template, err := githubtest.Template(t.TempDir())
	require.NoError(t, err)
	f := githubtest.Start(t)
	f.Fill(t, "r", n, template)
	return f, []string{"TAKT_GITHUB_URL=" + f.URL, "TAKT_DEPLOY_PER_HOUR=1000000"}
}
