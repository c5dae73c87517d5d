package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// What a worker has ended counts once, however often and by whomever it is told.
func TestLateAndRepeatedResultsAreCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	require.Equal(t, 200, b.finish(s.ID, w.ID, "first").status)
	require.Equal(t, 200, b.finish(s.ID, w.ID, "again").status)
	require.Equal(t, 409, b.finish(s.ID, b.register("other").ID, "theirs").status)
	require.Equal(t, 409, b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+s.ID+`"}`).status)
	require.Equal(t, 400, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)

	r := b.send("GET", "/api/builds/"+s.ID+"/download", key(), "")
	require.Equal(t, "first", r.body, "nothing is overwritten")
	require.Equal(t, "completed", b.status(s.ID).Status)
	require.Contains(t, b.send("GET", "/api/workers/"+w.ID+"/stats", key(), "").body, `"totalBuilds":1,"successfulBuilds":1,"failedBuilds":0`)
	require.Contains(t, b.send("GET", "/api/builds/statistics", key(), "").body, `"total":1,`)
	require.Empty(t, b.temporaries())
}

// A build that comes back waits where it stood, ahead of what came after it.
func TestReassignedBuildsKeepTheirPlace(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(b *bundle, w api.Registered) reply{
		"unregister": func(b *bundle, w api.Registered) reply {
			return b.send("POST", "/api/workers/unregister", key("X-Worker-Token", w.AccessToken), "")
		},
		"unregister by id": func(b *bundle, w api.Registered) reply {
			return b.send("POST", "/api/workers/"+w.ID+"/unregister", key(), "")
		},
		"delete": func(b *bundle, w api.Registered) reply { return b.send("DELETE", "/api/workers/"+w.ID, key(), "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			first, w := b.assigned()
			second := b.submit()
			r := leave(b, w)
			require.Equal(t, 200, r.status, r.body)
			require.Contains(t, r.body, `"builds_reassigned":1`)
			st := b.status(first.ID)
			require.Equal(t, "pending", st.Status)
			require.Nil(t, st.WorkerID)
			require.Nil(t, st.StartedAt)
			require.Equal(t, first.ID, b.poll(b.register("a").AccessToken).Job.ID)
			require.Equal(t, second.ID, b.poll(b.register("b").AccessToken).Job.ID)
		})
	}
}

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
