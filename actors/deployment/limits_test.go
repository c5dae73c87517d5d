package deployment_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/actors/deployment"
	"takt/http/githubtest"
	"takt/store"
)

// The budget is not begun anew by whoever resumes a deployment.
func TestBudgetIsRemembered(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	b.forge.Fill(t, "r", 4, template(t))
	id := b.deploy()
	d := b.await(id, store.DeploymentDone)
	ages := must(b.db.Made(t.Context(), d.CredentialID, time.Hour))(t)
	require.Len(t, ages, 4)
	ages = must(b.db.Made(t.Context(), []byte("another"), time.Hour))(t)
	require.Empty(t, ages)
}

func TestDryRunSaysWhatWouldBeDone(t *testing.T) {
	t.Parallel()
	b := setup(t, options{config: nil})
	tpl := template(t)
	b.forge.Fill(t, "r", 5, tpl)
	for _, r := range []struct{ org, name, content string }{
		{"from", "same", tpl}, {"to", "same", tpl}, {"from", "clash", tpl}, {"to", "clash", ""}, {"from", "left-out", tpl},
	} {
		must(b.forge.Add(githubtest.Repo{Org: r.org, Name: r.name}, r.content))(t)
	}
	id := b.deploy(func(r *store.DeploymentRequest) { r.DryRun, r.Exclude = true, []string{"left-*"} })
	d := b.await(id, store.DeploymentDone)
	require.Equal(t, 1, d.Filtered)
	repos := b.repos(id)
	require.Len(t, names(repos, store.RepoPlanned), 5)
	require.Equal(t, []string{"same"}, names(repos, store.RepoSkipped))
	require.Equal(t, []string{"clash"}, names(repos, store.RepoFailed))
	require.Equal(t, []string{"clash", "same"}, b.forge.Names("to"), "nothing is done")
	require.Zero(t, b.forge.Count("POST /orgs"))
	found := must(b.db.Progress(t.Context(), id))(t)
	e := b.d.Estimate(d.Request, found[id])
	require.Equal(t, 10, e.Calls)
	require.Positive(t, e.Took)
	_, err := b.d.Retry(t.Context(), id, "", githubtest.Token, false)
	require.Equal(t, store.Conflict, store.CodeOf(err))
}

func TestDeploymentThatCannotBePlannedFails(t *testing.T) {
	t.Parallel()
	b := setup(t, options{})
	id := b.deploy(func(r *store.DeploymentRequest) { r.SourceOrg = "nobody" })
	d := b.await(id, store.DeploymentFailed)
	require.Contains(t, d.Error, "Listing the repositories of nobody failed: there is no such thing, or the credential can't see it")
	require.Nil(t, d.Credential)
	wrong := must(b.d.Start(t.Context(), request(), "ghs_wrong", false))(t)
	require.Contains(t, b.await(wrong.ID, store.DeploymentFailed).Error, "the credential is not valid")

	// With a better credential it is planned after all.
	b.forge.Fill(t, "r", 2, template(t))
	must(b.d.Retry(t.Context(), wrong.ID, "", githubtest.Token, false))(t)
	b.await(wrong.ID, store.DeploymentDone)
	require.Equal(t, 2, b.addsUp(wrong.ID, 2)[store.RepoDone])
}

// takt's own credential is the operators', and for listed pairs only: at the start,
// at a retry, and when a deployment goes on after the list was shortened.
func TestOwnCredentialIsForOperatorsAndListedPairs(t *testing.T) {
	t.Parallel()
	f := newFake(2)
	f.act("r-0000", fails)
	b := setup(t, options{forge: f, config: func(c *deployment.Config) {
		c.Token, c.Allow = "own", []deployment.Pair{{Source: "From", Target: "to"}}
	}})
	ctx := t.Context()
	elsewhere := request(func(r *store.DeploymentRequest) { r.TargetOrg = "mine" })
	for _, c := range []struct {
		r        store.DeploymentRequest
		operator bool
		want     store.Code
	}{{request(), false, store.Unauthorized}, {elsewhere, false, store.Unauthorized}, {elsewhere, true, store.Forbidden}} {
		_, err := b.d.Start(ctx, c.r, "", c.operator)
		require.Equal(t, c.want, store.CodeOf(err), "%+v", c)
	}
	all, _, err := b.db.List(ctx, store.Page{})
	require.NoError(t, err)
	require.Empty(t, all)

	d := must(b.d.Start(ctx, request(), "", true))(t)
	b.await(d.ID, store.DeploymentDone)
	_, err = b.d.Retry(ctx, d.ID, "", "", false)
	require.Equal(t, store.Unauthorized, store.CodeOf(err))
	f.act("r-0000", waits)
	must(b.d.Retry(ctx, d.ID, "", "", true))(t)
	_, err = b.d.Retry(ctx, d.ID, "", "other", false)
	require.Equal(t, store.Unauthorized, store.CodeOf(err), "while it runs it keeps takt's")
	refused := func(order func(context.Context, string, bool) error) {
		require.Equal(t, store.Unauthorized, store.CodeOf(order(ctx, d.ID, false)))
	}
	refused(b.d.Pause)
	refused(b.d.Cancel)
	require.NoError(t, b.d.Pause(ctx, d.ID, true))
	refused(b.d.Resume)
	refused(b.d.Cancel)
	require.NoError(t, b.d.Resume(ctx, d.ID, true))
	require.NoError(t, b.d.Cancel(ctx, d.ID, true))

	// Of a list that was longer once.
	left := store.Deployment{ID: "left", Request: elsewhere, CredentialID: []byte("own")}
	must(b.db.Create(ctx, left))(t)
	require.Contains(t, b.await("left", store.DeploymentFailed).Error, "no forge credential of its own for this")
}

// What a retry may spend is decided when nobody else can end the deployment any more.
func TestARetryIsJudgedByTheDeploymentAsItIsLocked(t *testing.T) {
	t.Parallel()
	f := newFake(1)
	f.act("r-0000", waits)
	b := setup(t, options{forge: f, config: func(c *deployment.Config) {
		c.Token, c.Allow = "own", []deployment.Pair{{Source: "from", Target: "to"}}
	}})
	ctx := t.Context()
	id := b.deploy()
	b.eventually("it runs", func() bool { return b.find(id).State == store.DeploymentRunning })
	tx := must(b.data.Pool.Begin(ctx))(t)
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	must(tx.Exec(ctx, `SELECT FROM deployments WHERE id = $1 FOR UPDATE`, id))(t)
	failed := make(chan error, 1)
	go func() { _, err := b.d.Retry(ctx, id, "", "", false); failed <- err }()
	b.eventually("the retry waits for the row", func() bool {
		var n int
		err := b.data.Pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%lock_deployment%'`).Scan(&n)
		return err == nil && n > 0
	})
	must(tx.Exec(ctx, `UPDATE deployments SET state = 'cancelled', credential = NULL, finished_at = now() WHERE id = $1`, id))(t)
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, store.Unauthorized, store.CodeOf(<-failed), "it has ended, and takt's own credential is the operators'")
}
