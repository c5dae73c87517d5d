package deployment_test

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment"
	"takt/actors/pubsub"
	"takt/http/githubtest"
	"takt/store"
)

func template(t *testing.T) string {
	t.Helper()
	return must(githubtest.Template(t.TempDir()))(t)
}

func TestOrganisationIsCopied(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	tpl := template(t)
	b.forge.Fill(t, "r", 12, tpl)
	add := func(r githubtest.Repo, content string) { t.Helper(); must(b.forge.Add(r, content))(t) }
	add(githubtest.Repo{Org: "from", Name: "empty"}, "")
	add(githubtest.Repo{Org: "from", Name: "dev", DefaultBranch: "feature/one", Visibility: "public", Description: "about dev"}, tpl)
	add(githubtest.Repo{Org: "from", Name: "secret-plans"}, tpl)
	// Two names that the target uses: the same content, and another.
	add(githubtest.Repo{Org: "from", Name: "same"}, tpl)
	add(githubtest.Repo{Org: "to", Name: "x-same"}, tpl)
	add(githubtest.Repo{Org: "from", Name: "clash"}, tpl)
	add(githubtest.Repo{Org: "to", Name: "x-clash"}, "")

	var published atomic.Int64
	defer b.bus.Subscribe(func(e pubsub.Event) {
		if _, ok := e.Data.(deployment.Updated); ok {
			published.Add(1)
		}
	}, pubsub.DeploymentUpdated)()
	id := b.deploy(func(r *store.DeploymentRequest) { r.NameTemplate, r.Exclude = "x-{name}", []string{"Secret*"} })
	d := b.await(id, store.DeploymentDone)
	require.Equal(t, 1, d.Filtered)
	require.Nil(t, d.Credential, "the credential is wiped")
	repos := b.repos(id)
	require.Equal(t, []string{"clash"}, names(repos, store.RepoFailed))
	require.Equal(t, []string{"same"}, names(repos, store.RepoSkipped))
	require.Contains(t, repos["clash"].Error, "another repository called x-clash")
	require.Equal(t, 14, b.addsUp(id, 16)[store.RepoDone])
	for name, r := range repos {
		if r.Step == store.RepoDone {
			b.same(name, "x-"+name)
			require.Equal(t, 1, r.Attempts)
		}
	}
	require.Empty(t, githubtest.RefsOf(t, b.forge.Dir("to", "x-clash")), "what is somebody else's is left alone")
	dev, _ := b.forge.Find("to", "x-dev")
	require.Equal(t, "feature/one", dev.DefaultBranch)
	require.Equal(t, "public", dev.Visibility)
	require.Equal(t, "about dev", dev.Description, "without the marker")
	require.Equal(t, 6, repos["r-000"].Refs)
	require.Empty(t, must(os.ReadDir(b.work))(t))

	require.Positive(t, published.Load())
}
