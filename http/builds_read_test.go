package http_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

func TestTimelineOfABuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ask := func(id string) (kinds []string, line api.BuildTimeline) {
		r := b.send("GET", "/api/builds/"+id+"/timeline", key(), "")
		require.Equal(t, 200, r.status, r.body)
		line = decode[api.BuildTimeline](t, r)
		for _, s := range line.Steps {
			kinds = append(kinds, s.Kind)
		}
		return kinds, line
	}
	s, w := b.assigned()
	kinds, line := ask(s.ID)
	require.Equal(t, []string{"submitted", "assigned", "assigned"}, kinds)
	require.Equal(t, "assigned", line.State)
	require.Equal(t, w.ID, line.Steps[1].WorkerID)
	require.Equal(t, 1, line.Steps[1].Attempt)
	require.Nil(t, line.Steps[2].At, "nothing happened yet")

	r := b.send("POST", "/api/builds/"+s.ID+"/requeue", key("X-Admin-Key", adminKey), `{"reason":"no output"}`)
	require.Equal(t, 200, r.status, r.body)
	kinds, line = ask(s.ID)
	require.Equal(t, []string{"submitted", "assigned", "requeued", "waiting"}, kinds)
	require.Equal(t, store.LostRequeued, line.Steps[2].Reason)
	require.Contains(t, line.Steps[2].Text, "an operator took it from worker ")
	require.Equal(t, "A slot is free: the next poll of a worker gets it.", line.Steps[3].Text)
	require.Equal(t, 404, b.send("GET", "/api/builds/nosuch/timeline", key(), "").status)
}

func TestWhyABuildWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.submit()
	s := b.submit()
	ask := func(id string, header map[string]string) (why api.BuildWhy) {
		r := b.send("GET", "/api/builds/"+id+"/why", header, "")
		require.Equal(t, 200, r.status, r.body)
		why = decode[api.BuildWhy](t, r)
		require.Equal(t, why.State == "pending", why.WaitingSince != nil)
		why.WaitingSince = nil
		return why
	}
	want := api.BuildWhy{ID: s.ID, State: "pending", Number: 2, Reason: "There is no worker for ios.", Unmatched: true, Nearest: []string{}}
	require.Equal(t, want, ask(s.ID, key()))
	token := key("X-Build-Token", s.AccessToken)
	delete(token, "X-API-Key")
	require.Equal(t, want, ask(s.ID, token))
	require.Equal(t, 403, b.send("GET", "/api/builds/"+b.submit().ID+"/why", token, "").status)
	require.Equal(t, 404, b.send("GET", "/api/builds/nosuch/why", key(), "").status)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	require.Equal(t, api.BuildWhy{ID: s.ID, State: "cancelled", Nearest: []string{}}, ask(s.ID, key()))
}

func TestListIsABareArrayNewestFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, "[]", b.send("GET", "/api/builds", key(), "").body)
	first, second := b.submit(), b.submit()
	w := b.register("w")
	require.Equal(t, 200, b.finish(first.ID, w.ID, "app").status)

	r := b.send("GET", "/api/builds/", key(), "")
	require.Equal(t, 200, r.status)
	list := decode[[]api.BuildItem](t, r)
	require.Len(t, list, 2)
	require.Equal(t, second.ID, list[0].ID)
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`, list[0].CreatedAt)
	require.True(t, list[1].HasResult)
	require.NotEmpty(t, list[1].CompletedAt)
	require.NotContains(t, r.body, `"completedAt":null`)
	require.Equal(t, 1, strings.Count(r.body, "completedAt"), "absent, not null, while it runs")

	r = b.send("GET", "/api/builds?format=object", key(), "")
	object := decode[api.BuildList](t, r)
	require.Equal(t, 2, object.Total)
	require.Len(t, object.Builds, 2)

	r = b.send("GET", "/api/builds?status=completed", key(), "")
	requireShape(t, "build_item", reply{body: strings.Trim(r.body, "[]")})
}

func TestLogsCanBeReadOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	path := "/api/builds/" + s.ID + "/logs"
	for i := range 150 {
		r := b.json("POST", path, key("X-Worker-Id", w.ID), fmt.Sprintf(`{"level":"warn","message":"line %d"}`, i))
		require.Equal(t, 200, r.status, r.body)
	}
	r := b.send("GET", path, key(), "")
	requireShape(t, "logs", r)
	all := decode[api.Logs](t, r)
	require.Equal(t, s.ID, all.BuildID)
	require.Greater(t, len(all.Logs), 150, "no default limit")
	require.Equal(t, "Build submitted", all.Logs[0].Message)
	require.Equal(t, "info", all.Logs[0].Level)

	some := decode[api.Logs](t, b.send("GET", fmt.Sprintf("%s?after=%d&limit=10", path, all.Logs[4].Seq), key(), ""))
	require.Equal(t, all.Logs[5:15], some.Logs)
	for _, bad := range []string{"after=x", "after=-1", "limit=0", "limit=x", "tail=-1"} {
		require.Equal(t, 400, b.send("GET", path+"?"+bad, key(), "").status, bad)
	}
	last := all.Logs[len(all.Logs)-1].Seq
	require.Contains(t, b.send("GET", fmt.Sprintf("%s?after=%d", path, last), key(), "").body, `"logs":[]`)
	newest := decode[api.Logs](t, b.send("GET", path+"?tail=1", key(), ""))
	require.Len(t, newest.Logs, 1)
	require.Equal(t, last, newest.Logs[0].Seq)
}

func TestHealthCountsBuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.assigned()
	b.submit()
	for _, path := range []string{"/health", "/api/health"} {
		r := b.send("GET", path, nil, "")
		require.Equal(t, 200, r.status)
		require.Equal(t, 1, strings.Count(r.body, `"pending":`))
		require.Contains(t, r.body, `"status":"ok","queue":{"pending":1,"active":1},"storage":{`)
		require.Contains(t, r.body, `"database":{"vacuum_held_back_seconds":90}`)
	}
}
