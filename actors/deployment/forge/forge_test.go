package forge_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment/forge"
	"takt/http/githubtest"
	"takt/store/storetest/needs"
)

// fixture is a forge, the client of it, and a template of its repositories.
type fixture struct {
	t        *testing.T
	forge    *githubtest.Forge
	github   *forge.GitHub
	account  *forge.Account
	work     string
	template string
}

func setup(t *testing.T, edit ...func(*forge.Config)) *fixture {
	t.Helper()
	return setupWith(t, func(*githubtest.Config) {}, edit...)
}

func setupWith(t *testing.T, behave func(*githubtest.Config), edit ...func(*forge.Config)) *fixture {
	t.Helper()
	needs.Git(t)
	f := githubtest.Start(t, behave)
	cfg := forge.Config{BaseURL: f.URL, WorkDir: filepath.Join(t.TempDir(), "work"), Environ: os.Environ(), Backoff: 5 * time.Millisecond}
	for _, e := range edit {
		e(&cfg)
	}
	g := must(forge.New(cfg))(t)
	t.Cleanup(g.Close)
	b := &fixture{t: t, forge: f, github: g, account: g.Login(githubtest.Token), work: cfg.WorkDir, template: template}
	t.Cleanup(func() { require.Empty(t, must(os.ReadDir(b.work))(t), "the disk is clean") })
	return b
}

// noError is for goroutines of the forge, which can't end the test.
func (b *fixture) noError(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Error(err)
	}
}

func (b *fixture) url(org, name string) string { return b.forge.URL + org + "/" + name + ".git" }

// make adds a target of a copy.
func (b *fixture) target(name string) forge.Target {
	b.t.Helper()
	return must(b.account.Create(b.t.Context(), forge.CreateRequest{Org: "to", Name: name, Visibility: "private", Marker: "m"}))(b.t)
}

func TestCopyTakesBranchesAndTagsAndNothingElse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.forge.Fill(t, "r", 1, b.template)
	target := b.target("r-000")
	copied := must(b.account.Copy(t.Context(), b.url("from", "r-000"), target.URL))(t)
	require.Empty(t, copied.Warning)
	want := githubtest.RefsOf(t, b.forge.Dir("from", "r-000"))
	require.Len(t, want, 6)
	require.Equal(t, want, map[string]string(copied.Refs))
	require.Equal(t, want, githubtest.RefsOf(t, b.forge.Dir("to", "r-000")))
	_, err := os.Stat(filepath.Join(b.forge.Dir("to", "r-000"), "refs", "pull"))
	require.ErrorIs(t, err, os.ErrNotExist)

	refs := must(b.account.Refs(t.Context(), target.URL))(t)
	require.Empty(t, copied.Refs.Diff(refs))

	// Again, after the source has changed: what is gone there goes here.
	require.NoError(t, os.Remove(filepath.Join(b.forge.Dir("from", "r-000"), "refs", "heads", "only-r-000")))
	must(b.account.Copy(t.Context(), b.url("from", "r-000"), target.URL))(t)
	require.Equal(t, githubtest.RefsOf(t, b.forge.Dir("from", "r-000")), githubtest.RefsOf(t, b.forge.Dir("to", "r-000")))

	require.NoError(t, b.account.Configure(t.Context(), "to", "r-000", forge.Settings{Description: "d", DefaultBranch: "feature/one"}))
	made, _ := b.forge.Find("to", "r-000")
	require.Equal(t, "feature/one", made.DefaultBranch)
	require.Equal(t, "d", made.Description)
}

func TestLargeFilesAreCopiedOrTheirLackIsTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	template, oid, content := lfsTemplate(t)
	must(b.forge.Add(githubtest.Repo{Org: "from", Name: "large"}, template))(t)
	at := b.forge.LFSFile("from", "large", oid)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o750))
	require.NoError(t, os.WriteFile(at, content, 0o600))
	copied := must(b.account.Copy(t.Context(), b.url("from", "large"), b.target("large").URL))(t)
	got, err := os.ReadFile(b.forge.LFSFile("to", "large", oid))
	if !hasLFS() {
		require.ErrorIs(t, err, os.ErrNotExist)
		require.Contains(t, copied.Warning, "git-lfs is not installed")
		return
	}
	require.NoError(t, err)
	require.Equal(t, content, got)
	require.Empty(t, copied.Warning)
}

func TestReposPagesThroughAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 250 {
		must(b.forge.Add(githubtest.Repo{Org: "from", Name: "r" + strings.Repeat("x", i%50) + string(rune('a'+i/50))}, ""))(t)
	}
	repos := must(b.account.Repos(t.Context(), "from"))(t)
	require.Len(t, repos, 250)
	require.Equal(t, 3, b.forge.Count("GET /orgs"))
	require.Equal(t, "private", repos[0].Visibility)
}

func TestCreateFindsItsOwnAndLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	wish := forge.CreateRequest{Org: "to", Name: "thing", Description: strings.Repeat("d", 350), Visibility: "internal", Marker: "dep/1"}
	first := must(b.account.Create(t.Context(), wish))(t)
	require.True(t, first.Made && first.Owned)
	made, _ := b.forge.Find("to", "thing")
	require.Equal(t, "internal", made.Visibility)
	require.Len(t, made.Description, 350)

	again := must(b.account.Create(t.Context(), wish))(t)
	require.True(t, again.Owned)
	require.Equal(t, first.ID, again.ID)

	wish.Marker = "dep/2"
	for _, look := range []bool{false, true} {
		wish.Look = look
		other := must(b.account.Create(t.Context(), wish))(t)
		require.False(t, other.Owned)
		require.Equal(t, first.ID, other.ID)
	}
	require.Equal(t, []string{"thing"}, b.forge.Names("to"))
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
