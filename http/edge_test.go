package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// Published clients refuse a time in the wrong form, and shell tests search JSON
// as text.
func TestTimesAndTextsAreAsPublishedClientsWantThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const ms, iso = `\d{13}`, `"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`
	submitted := b.form("/api/builds", key(), source("s"), part{name: "platform", content: "ios"})
	require.Regexp(t, `"submitted_at":`+ms+`[,}]`, submitted.body)
	require.Equal(t, 1, strings.Count(submitted.body, `"id":"`))
	require.Contains(t, submitted.body, `"status":"pending"`)
	s := decode[api.Submitted](t, submitted)
	w := b.register("w")
	poll := b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), "")
	require.Regexp(t, `"submitted_at":`+iso, poll.body)
	require.Contains(t, poll.body, `"source_url":"/api/builds/`+s.ID+`/source","certs_url":null`)
	require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status)

	status := b.send("GET", "/api/builds/"+s.ID+"/status", key(), "")
	requireShape(t, "build_status", status)
	for _, member := range []string{"submitted_at", "started_at", "completed_at"} {
		require.Regexp(t, `"`+member+`":`+ms+`[,}]`, status.body)
	}
	require.Equal(t, 1, strings.Count(status.body, `"status":"`))
	for _, path := range []string{"/api/builds", "/api/builds/" + s.ID} {
		item := b.send("GET", path, key(), "")
		for _, member := range []string{"createdAt", "completedAt", "submitted_at", "updated_at"} {
			require.Regexp(t, `"`+member+`":`+iso, item.body, path)
		}
	}
	require.Regexp(t, `"timestamp":`+ms+`[,}]`, b.send("GET", "/api/builds/"+s.ID+"/logs", key(), "").body)
	again := b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "")
	require.Regexp(t, `"submitted_at":`+ms+`[,}]`, again.body)
	require.Equal(t, 1, strings.Count(again.body, `"id":"`))
}
