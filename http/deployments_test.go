package http_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
	"takt/store/postgres"
)

// deploying serves deployments from the store alone: nobody works on them but the
// test.
type deploying struct {
	*postgres.Deployments
	begun *atomic.Int64
}

var errOperatorsOnly = store.NewError(store.Unauthorized, "Missing token or X-Admin-Key header")

func newDeploying(db *postgres.DB) deploying {
	return deploying{postgres.NewDeployments(db), &atomic.Int64{}}
}

func (d deploying) Start(ctx context.Context, r store.DeploymentRequest, token string, operator bool) (store.Deployment, error) {
	if r.SourceOrg == "" {
		return store.Deployment{}, store.NewError(store.InvalidArgument, "source_org must be the name of an organisation")
	}
	if token == "" && !operator {
		return store.Deployment{}, errOperatorsOnly
	}
	if strings.Contains(strings.Join(slices.Concat(r.Include, r.Exclude), ""), "\x00") || r.Concurrency < 0 || r.Concurrency > 32 {
		return store.Deployment{}, store.NewError(store.Unprocessable, "as the real one, it refuses what nobody can store")
	}
	return d.Create(ctx, store.Deployment{ID: fmt.Sprintf("d%d", d.begun.Add(1)), Request: r, Credential: []byte("sealed " + token), CredentialID: []byte("c")})
}

func (d deploying) Retry(ctx context.Context, id, repo, token string, operator bool) (int, error) {
	return d.Deployments.Retry(ctx, id, repo, func(found store.Deployment) (sealed, credential []byte, err error) {
		if token == "own" && found.State.Final() && !operator {
			err = errOperatorsOnly
		} else if token == "own" {
			err = may(operator)(found)
		}
		return []byte(token), []byte("c"), err
	})
}

// may refuses others than operators what takt's own credential was begun with: that of the
// fake is "sealed ".
func may(operator bool) func(store.Deployment) error {
	return func(d store.Deployment) error {
		if !operator && string(d.Credential) == "sealed " { // an ended one has no credential any more
			return errOperatorsOnly
		}
		return nil
	}
}

func (d deploying) Cancel(ctx context.Context, id string, operator bool) error {
	return d.Deployments.Cancel(ctx, id, may(operator))
}

func (d deploying) Pause(ctx context.Context, id string, operator bool) error {
	return d.Deployments.Pause(ctx, id, may(operator))
}

func (d deploying) Resume(ctx context.Context, id string, operator bool) error {
	return d.Deployments.Resume(ctx, id, may(operator))
}

func (d deploying) Estimate(store.DeploymentRequest, store.DeploymentProgress) store.DeploymentEstimate {
	return store.DeploymentEstimate{Calls: 2, Took: time.Second}
}

// plan begins and plans a deployment of r0, r1 and r2.
func (b *fixture) plan() {
	b.t.Helper()
	r := b.json("POST", "/api/deployments", key(), `{"source_org":"a","target_org":"b","include":["r*"],"archived":"include",
		"forks":"include","name_template":"{name}","visibility":"keep","concurrency":8,"token":"the-secret"}`)
	require.Equal(b.t, 202, r.status, r.body)
	require.Equal(b.t, "/api/deployments/d1", r.header.Get("Location"))
	require.NotContains(b.t, r.body, "secret")
	claims, err := b.deploying.Claim(b.t.Context(), "me", time.Minute, nil, 10)
	require.NoError(b.t, err)
	require.Len(b.t, claims, 1)
	b.claim = claims[0]
	rows := []store.DeploymentRepo{{Name: "r0", Target: "r0"}, {Name: "r1", Target: "r1"}, {Name: "r2", Target: "r2"}}
	require.NoError(b.t, b.deploying.Plan(b.t.Context(), b.claim, rows, 4))
	_, err = b.pool.Exec(b.t.Context(), `UPDATE deployments SET planned_at = planned_at - interval '1 minute'`) // so that its pace can be told
	require.NoError(b.t, err)
}

func (b *fixture) step(name string, step store.RepoStep, refs int, failure string) {
	b.t.Helper()
	row, err := b.deploying.Begin(b.t.Context(), b.claim, name)
	require.NoError(b.t, err)
	require.NoError(b.t, b.deploying.Step(b.t.Context(), b.claim, name, row.Run, store.RepoChange{Step: step, Refs: refs, Error: failure}))
	b.server.DeploymentChanged("d1")
}

func TestDeploymentsAreShownAndSteered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.plan()
	b.step("r0", store.RepoDone, 3, "")
	b.step("r1", store.RepoFailed, 0, "no way")
	b.step("r2", store.RepoPushing, 0, "")

	r := b.json("GET", "/api/deployments/d1", key(), "")
	require.Equal(t, 200, r.status)
	require.NotContains(t, r.body, "secret")
	requireShape(t, "deployment", r)
	d := decode[api.Deployment](t, r)
	require.Equal(t, api.DeploymentCounts{Total: 3, Done: 1, Failed: 1, Pushing: 1}, d.Counts)
	require.Equal(t, 4, d.Filtered)
	require.Equal(t, 3, d.Refs)
	require.Len(t, d.Repos, 3)
	require.Equal(t, "no way", *d.Repos[1].Error)
	require.NotNil(t, d.ETASeconds)
	require.Empty(t, decode[api.Deployment](t, b.json("GET", "/api/deployments/d1?repos=0", key(), "")).Repos)
	list := decode[api.Deployments](t, b.json("GET", "/api/deployments", key(), ""))
	require.Len(t, list.Deployments, 1)
	require.Equal(t, d.Counts, list.Deployments[0].Counts)

	require.Equal(t, "paused", decode[api.Deployment](t, b.json("POST", "/api/deployments/d1/pause", key(), "")).State)
	require.Equal(t, 409, b.json("POST", "/api/deployments/d1/pause", key(), "").status)
	require.Equal(t, "running", decode[api.Deployment](t, b.json("POST", "/api/deployments/d1/resume", key(), "")).State)
	r = b.json("POST", "/api/deployments/d1/retry", key(), `{"repo":"r1"}`)
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, 1, decode[api.DeploymentRetried](t, r).Retried)
	require.Equal(t, 409, b.json("POST", "/api/deployments/d1/retry", key(), `{"repo":"r0"}`).status, "it went well")
	d = decode[api.Deployment](t, b.json("POST", "/api/deployments/d1/cancel", key(), ""))
	require.Equal(t, "cancelled", d.State)
	require.Equal(t, api.DeploymentCounts{Total: 3, Done: 1, Skipped: 2}, d.Counts)

	for route, status := range map[string]int{
		"GET /api/deployments/nobody": 404, "GET /api/deployments/nobody/events": 404, "POST /api/deployments/nobody/cancel": 404,
		"GET /api/deployments/a..b": 404, "GET /api/deployments?limit=0": 400, "POST /api/deployments": 400,
	} {
		method, path, _ := strings.Cut(route, " ")
		require.Equal(t, status, b.json(method, path, key(), "").status, route)
	}
	require.Equal(t, 400, b.json("POST", "/api/deployments", key(), `{}`).status)
}

// stream follows the deployment from an event on.
func (b *fixture) follow(lastID string) *listener {
	b.t.Helper()
	return tune(b.t, b.client, b.url+"/api/deployments/d1/events", key("Last-Event-ID", lastID))
}

func TestDeploymentEventsFollowIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.plan()
	events := b.follow("0")
	for range 3 {
		require.Equal(t, "repo", events.next().name, "all are told at first")
	}
	require.Equal(t, "progress", events.next().name)
	b.step("r0", store.RepoDone, 3, "")
	var repo api.DeploymentRepo
	e := events.next()
	require.Equal(t, "repo", e.name)
	require.NoError(t, json.Unmarshal([]byte(e.data), &repo))
	require.Equal(t, "r0", repo.Name)
	for repo.Step != "done" { // the stream may have looked between the two writes
		e = events.next()
		if e.name == "repo" {
			require.NoError(t, json.Unmarshal([]byte(e.data), &repo))
		}
	}
	b.step("r1", store.RepoDone, 1, "")
	b.step("r2", store.RepoDone, 1, "")
	left, err := b.deploying.Finish(t.Context(), b.claim)
	require.NoError(t, err)
	require.Zero(t, left)
	rest := events.ends()
	last := rest[len(rest)-1]
	require.Equal(t, "end", last.name)
	var d api.Deployment
	require.NoError(t, json.Unmarshal([]byte(last.data), &d))
	require.Equal(t, "done", d.State)
	require.Equal(t, 3, d.Counts.Done)

	rest = b.follow(last.id).ends()
	require.Equal(t, "end", rest[len(rest)-1].name, "who comes later learns that it has ended")
}

// Who spends takt's own credential, or changes what does, shows the admin key: the API key
// alone is not enough, nor is a wrong admin key. All are audited, by the key that was used.
func TestOwnCredentialNeedsTheAdminKeyAndIsAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	db, written := b.deploying, postgres.NewAudit(b.db)
	ask := func(path, body, admin string) reply {
		header := key()
		if admin != "" {
			header["X-Admin-Key"] = admin
		}
		return b.json("POST", path, header, body)
	}
	const body = `{"source_org":"a","target_org":"b","visibility":"public","allow_publish":true}`
	require.Equal(t, 401, ask("/api/deployments", body, "").status)
	require.Equal(t, 403, ask("/api/deployments", body, apiKey).status)
	list, _, err := db.List(t.Context(), store.Page{})
	require.NoError(t, err)
	require.Empty(t, list)

	require.Equal(t, 202, ask("/api/deployments", body, adminKey).status)
	for _, order := range []string{"pause", "resume", "cancel"} {
		require.Equal(t, 401, ask("/api/deployments/d1/"+order, "", "").status, order)
		require.Equal(t, 403, ask("/api/deployments/d1/"+order, "", apiKey).status, order)
		require.Equal(t, 200, ask("/api/deployments/d1/"+order, `{"reason":"a test"}`, adminKey).status, order)
	}
	require.Equal(t, 401, ask("/api/deployments/d1/retry", `{"token":"own"}`, "").status)
	require.Equal(t, 200, ask("/api/deployments/d1/retry", `{"token":"own","reason":"a test"}`, adminKey).status)
	require.Equal(t, 202, ask("/api/deployments", `{"source_org":"a","target_org":"b","token":"mine"}`, "").status)
	require.Equal(t, 200, ask("/api/deployments/d2/pause", "", "").status)
	require.Equal(t, 413, ask("/api/deployments/d2/resume", strings.Repeat(" ", 2<<20), "").status)
	require.Equal(t, 400, ask("/api/deployments/d2/resume", `{"reason":"`+strings.Repeat("x", 1001)+`"}`, "").status)

	entries, _, err := written.List(t.Context(), "", store.Page{Limit: 20})
	require.NoError(t, err)
	var lines []string
	details := ""
	for _, e := range entries {
		if e.Action == store.WrongKey {
			continue
		}
		details += string(e.Detail)
		who, _, _ := strings.Cut(e.Actor, "@")
		lines = append(lines, strings.Join([]string{who, e.Action, e.Target, e.Reason, e.Outcome}, "|"))
		require.NotContains(t, string(e.Detail), "own")
		require.NotContains(t, string(e.Detail), "mine")
	}
	slices.Reverse(lines)
	refused := "|" + errOperatorsOnly.Message
	require.Equal(t, []string{
		"api|deploy|a → b|" + refused, "admin|deploy|a → b||done",
		"api|pause|deployment d1|" + refused, "admin|pause|deployment d1|a test|done",
		"api|resume|deployment d1|" + refused, "admin|resume|deployment d1|a test|done",
		"api|cancel|deployment d1|" + refused, "admin|cancel|deployment d1|a test|done",
		"api|retry|deployment d1|" + refused, "admin|retry|deployment d1|a test|done",
		"api|deploy|a → b||done", "api|pause|deployment d2||done",
	}, lines)
	require.Contains(t, details, `"allow_publish": true`)
}

// In the dashboard the admin key's sessions are operators.
func TestOwnCredentialNeedsAnAdminSessionInTheDashboard(t *testing.T) {
	t.Parallel()
	d := setupDash(t, apiKey)
	db := newDeploying(d.db)
	_, err := db.Create(t.Context(), store.Deployment{ID: "own", Request: store.DeploymentRequest{SourceOrg: "a", TargetOrg: "b"}, CredentialID: []byte("c")})
	require.NoError(t, err)
	_, err = d.pool.Exec(t.Context(), `UPDATE deployments SET credential = 'sealed '`)
	require.NoError(t, err)
	require.Equal(t, 401, d.ask("POST", "/deployments/own/pause", url.Values{}, nil).status)
	r := d.login(adminKey, "operator", nil)
	d.cookie, _, _ = strings.Cut(r.header.Get("Set-Cookie"), ";")
	require.Equal(t, 303, d.ask("POST", "/deployments/own/pause", url.Values{"reason": {"why"}}, nil).status)
	entries, _, err := postgres.NewAudit(d.db).List(t.Context(), "", store.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, entries, 2, "each act once")
	require.Equal(t, []string{"operator (admin)@127.0.0.1", "pause", "deployment own", "why", "done"},
		[]string{entries[0].Actor, entries[0].Action, entries[0].Target, entries[0].Reason, entries[0].Outcome})

	_, err = d.pool.Exec(t.Context(), `UPDATE deployments SET credential = NULL`)
	require.NoError(t, err)
	require.Contains(t, d.ask("GET", "/deployments/own", nil, nil).body, `action="/deployments/own/resume"`)
	r = d.login(apiKey, "submitter", nil)
	d.cookie, _, _ = strings.Cut(r.header.Get("Set-Cookie"), ";")
	page := d.ask("GET", "/deployments/own", nil, nil).body
	require.NotContains(t, page, `action="/deployments/own/resume"`)
	require.Contains(t, page, "log in with the admin key")
}
