package http_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// listed returns the ids of a list of builds.
func (b *fixture) listed(header map[string]string, query string) []string {
	b.t.Helper()
	r := b.send("GET", "/api/builds"+query, header, "")
	require.Equal(b.t, 200, r.status, r.body)
	ids := []string{}
	for _, item := range decode[[]api.BuildItem](b.t, r) {
		ids = append(ids, item.ID)
	}
	return ids
}

// labelled submits a build with labels.
func (b *fixture) labelled(header map[string]string, labels string) string {
	b.t.Helper()
	r := b.form("/api/builds", header, source("source code"), part{name: "platform", content: "ios"}, part{name: "labels", content: labels})
	require.Equal(b.t, 201, r.status, r.body)
	return decode[api.Submitted](b.t, r).ID
}

func (b *fixture) several(header map[string]string, query string) api.SeveralChanged {
	b.t.Helper()
	r := b.send("POST", "/api/builds/"+query, header, "")
	require.Equal(b.t, 200, r.status, r.body)
	return decode[api.SeveralChanged](b.t, r)
}

func TestSeveralBuildsAreCancelledByLabel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ci := shownKey(b.named("ci", store.ScopeSubmit).Key)
	held, w := b.assigned(part{name: "labels", content: `{"pr":"7","app":"shop"}`})
	var ids []string
	for range 3 {
		ids = append(ids, b.labelled(key(), `{"pr":"7","app":"shop"}`))
	}
	own := b.labelled(ci.headers(), `{"pr":"7","app":"shop"}`)
	other := b.labelled(key(), `{"pr":"8","app":"shop"}`)
	ended := b.labelled(key(), `{"pr":"7","app":"shop"}`)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+ended+"/cancel", key(), "").status)

	require.Equal(t, []string{ended, own, ids[2], ids[1], ids[0], held.ID}, b.listed(key(), "?label=pr%3D7&label=app%3Dshop"))
	require.Equal(t, []string{other}, b.listed(key(), "?label=app=shop&label=pr=8"))
	require.Equal(t, []string{own}, b.listed(ci.headers(), "?label=app=shop"))

	got := b.several(ci.headers(), "cancel?label=pr=7")
	require.Equal(t, api.SeveralChanged{Builds: []api.OneChanged{{ID: own}}}, got, "its own only")
	got = b.several(key(), "cancel?label=pr=7&label=app=shop&limit=2&reason=closed")
	require.Equal(t, api.SeveralChanged{Builds: []api.OneChanged{{ID: ids[2]}, {ID: ids[1]}}, More: true}, got, "those that wait first")
	require.Equal(t, api.SeveralChanged{Builds: []api.OneChanged{{ID: held.ID}}}, b.several(key(), "cancel?label=pr=7&state=assigned&platform=ios"))
	require.Equal(t, api.SeveralChanged{Builds: []api.OneChanged{{ID: ids[0]}}}, b.several(key(), "cancel?label=pr=7"))
	require.Equal(t, api.SeveralChanged{Builds: []api.OneChanged{}}, b.several(key(), "cancel?label=pr=7"))
	require.Equal(t, []string{other}, b.listed(key(), "?status=pending"))
	require.Contains(t, b.send("POST", "/api/builds/"+held.ID+"/heartbeat?worker_id="+w.ID, key(), "").body, `"cancelled":true`)

	audit := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "").body
	require.Contains(t, audit, `"action":"cancel","target":"builds with labels","reason":"closed","detail":{"builds":["`+ids[2]+`","`+ids[1]+`"],"labels":{"pr":"7","app":"shop"}`)
	require.NotContains(t, audit, "build/"+ids[0], "one entry for all")
}

// A slip must not select more builds than were meant.
func TestChangesOfSeveralBuildsRefuseWhatTheyDoNotKnow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.labelled(key(), `{"pr":"7"}`)
	for query, why := range map[string]string{
		"":                             "Invalid request: label required, as name=value",
		"?lable=pr=7":                  "Invalid request: unknown parameter lable",
		"?label=pr=7&plaform=ios&x=1":  "Invalid request: unknown parameter plaform, x",
		"?label=pr=7&%0d%0aSet-Cookie": "Invalid request: unknown parameter %0D%0ASet-Cookie",
		"?label=pr":                    `Invalid request: label: "pr" must be name=value`,
		"?label=pr=7&label=pr=8":       `Invalid request: label: "pr" is there twice`,
		"?label=p%20r=7":               "Invalid request: labels: names are 1 to 63 of letters, digits and _ . - /",
		"?label=pr=7&limit=101":        "Invalid request: limit must be 1 to 100",
		"?label=pr=7&platform=windows": "Valid platform required (ios|android)",
		"?label=pr=7&state=completed":  "",
	} {
		for _, act := range []string{"cancel", "retry"} {
			r := b.send("POST", "/api/builds/"+act+query, key(), "")
			require.Equal(t, 400, r.status, "%s%s: %s", act, query, r.body)
			if why != "" {
				requireProblem(t, r, why, "invalid_argument")
			}
		}
	}
	require.Equal(t, []string{id}, b.listed(key(), "?status=pending"), "nothing has changed")
	require.Equal(t, 400, b.send("GET", "/api/builds?label=pr", key(), "").status)
}

// Published clients send what a list does not know, and still get all of it.
func TestListsNameTheParametersThatTheyIgnore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.submit()
	for path, ignored := range map[string]string{
		"/api/builds":                              "",
		"/api/builds?limit=1&label=pr=7":           "",
		"/api/builds?lable=pr=7&limit=1":           "lable",
		"/api/builds?z=1&a=2&state=pending":        "a, z",
		"/api/builds?a,%20b=1&%0d%0aX-Evil:%20y=1": "%0D%0AX-Evil%3A+y, a%2C+b",
		"/api/workers?sort=x":                      "sort",
		"/api/deployments?org=x":                   "org",
	} {
		r := b.send("GET", path, key(), "")
		require.Equal(t, 200, r.status, path)
		require.Equal(t, ignored, r.header.Get("Takt-Ignored"), path)
		require.Empty(t, r.header.Get("X-Evil"))
	}
}

func TestSeveralBuildsAreRetriedByLabel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ci := shownKey(b.named("ci", store.ScopeSubmit).Key)
	fail := func(id string) {
		require.Equal(t, 200, b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+id+`"}`).status)
	}
	w := b.register("w")
	var failed []string
	for i := range 3 {
		header := key()
		if i == 0 {
			header = ci.headers()
		}
		id := b.labelled(header, `{"release":"2.4"}`)
		p := b.poll(w.AccessToken)
		require.Equal(t, id, p.Job.ID)
		w.AccessToken = p.AccessToken
		fail(id)
		failed = append(failed, id)
	}
	b.labelled(key(), `{"release":"2.4"}`) // waits
	got := b.several(ci.headers(), "retry?label=release=2.4")
	require.Len(t, got.Builds, 1, "its own")
	require.Equal(t, failed[0], got.Builds[0].ID)
	require.Equal(t, failed[0], got.Builds[0].Retry.OriginalBuildID)
	require.NotEmpty(t, got.Builds[0].Retry.AccessToken)

	got = b.several(key(), "retry?label=release=2.4&reason=fixed")
	require.Equal(t, []string{failed[2], failed[1]}, []string{got.Builds[0].ID, got.Builds[1].ID}, "but the one that was retried")
	require.Empty(t, b.several(key(), "retry?label=release=2.4").Builds, "a repeat retries nothing again")
	require.Equal(t, 200, b.send("POST", "/api/builds/"+got.Builds[0].Retry.ID+"/cancel", key(), "").status)
	again := b.several(key(), "retry?label=release=2.4&state=cancelled")
	require.Len(t, again.Builds, 1)
	require.Equal(t, got.Builds[0].Retry.ID, again.Builds[0].ID)
	audit := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "").body
	require.Contains(t, audit, `"action":"retry","target":"builds with labels","reason":"fixed"`)

	b.remove("builds/" + again.Builds[0].Retry.ID)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+again.Builds[0].Retry.ID+"/cancel", key(), "").status)
	gone := b.several(key(), "retry?label=release=2.4&state=cancelled")
	require.Equal(t, []api.OneChanged{{ID: again.Builds[0].Retry.ID, Code: "invalid_state", Error: "Original build source no longer available. Please submit a new build."}}, gone.Builds)
}
