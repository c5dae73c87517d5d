package http_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

func TestPollHandsOutBuildsInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.submit(part{"certs", "c", "certs"})
	second := b.submit()
	w, v := b.register("w"), b.register("v")

	r := b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), "")
	require.Equal(t, 200, r.status, r.body)
	p := decode[api.PollReply](t, r)
	require.Equal(t, first.ID, p.Job.ID)
	require.Equal(t, "/api/builds/"+first.ID+"/source", p.Job.SourceURL)
	require.Equal(t, "/api/builds/"+first.ID+"/certs", *p.Job.CertsURL)
	require.Equal(t, 1, p.Job.Attempt)
	require.NotEqual(t, w.AccessToken, p.AccessToken)

	r = b.send("POST", "/api/workers/poll", key("X-Worker-Token", v.AccessToken, "Content-Type", "application/json"), "")
	require.Equal(t, 200, r.status, r.body)
	p = decode[api.PollReply](t, r)
	require.Equal(t, second.ID, p.Job.ID)
	require.Nil(t, p.Job.CertsURL)

	r = b.send("GET", "/api/workers/poll?worker_id="+b.register("u").ID, key(), "")
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, `"job":null`)
	requireShape(t, "poll_reply", r)
}

// A poll for several builds gets them in one reply; job is the first of them.
func TestPollForSeveralBuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := []string{b.submit().ID, b.submit().ID, b.submit().ID}
	w := decode[api.Registered](t, b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":{"maxConcurrentBuilds":3}}`))
	poll := func(query, token string) (got []string, p api.PollReply) {
		r := b.send("POST", "/api/workers/poll"+query, key("X-Worker-Token", token), "")
		require.Equal(t, 200, r.status, r.body)
		p = decode[api.PollReply](t, r)
		for _, j := range p.Jobs {
			got = append(got, j.ID)
		}
		if query == "" {
			require.NotContains(t, r.body, "jobs")
		} else if len(p.Jobs) > 0 {
			require.Equal(t, p.Jobs[0], *p.Job)
			requireShape(t, "poll_reply_several", r)
		}
		return got, p
	}
	got, lost := poll("?max=2", w.AccessToken)
	require.Equal(t, ids[:2], got)
	got, again := poll("?max=9", w.AccessToken)
	require.Equal(t, ids[:2], got, "the reply was lost")
	require.Equal(t, lost.Jobs, again.Jobs)
	_, one := poll("", w.AccessToken)
	require.Equal(t, ids[0], one.Job.ID, "one at a time")
	got, two := poll("?max=9", one.AccessToken)
	require.Equal(t, ids[1:2], got)
	got, p := poll("?max=9", two.AccessToken)
	require.Equal(t, ids[2:], got)
	got, p = poll("?max=9", p.AccessToken)
	require.Empty(t, got)
	require.Nil(t, p.Job)
}

func TestPollsOfAForgedTokenAndWithoutADatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.register("w")
	forged := []byte(w.AccessToken)
	forged[3] ^= 1 // another worker
	require.Equal(t, 401, b.send("GET", "/api/workers/poll", key("X-Worker-Token", string(forged)), "").status, "forged")
	p := decode[api.PollReply](t, b.send("GET", "/api/workers/poll?wait=0.05&active=", key("X-Worker-Token", w.AccessToken), ""))
	require.Nil(t, p.Job, "a parked poll ends with its time")
	require.NotEqual(t, w.AccessToken, p.AccessToken)
	b.db.Drop(nil)
	r := b.send("GET", "/api/workers/poll", key("X-Worker-Token", w.AccessToken), "")
	require.Equal(t, 503, r.status)
	require.NotEmpty(t, r.header.Get("Retry-After"))
}
