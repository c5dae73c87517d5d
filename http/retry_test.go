package http_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

func TestRetryCopiesWhatIsThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	certs := strings.Repeat("secret", 50_000)
	old, w := b.assigned(part{"certs", "c.zip", certs}, part{name: "priority", content: "3"}, part{name: "labels", content: `{"cache":"pods"}`})
	require.Equal(t, 200, b.json("POST", "/api/workers/fail", key(), `{"build_id":"`+old.ID+`"}`).status)
	b.published.take()

	r := b.send("POST", "/api/builds/"+old.ID+"/retry", map[string]string{"X-Build-Token": old.AccessToken, "Content-Type": "application/json"}, "")
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "retried", r)
	again := decode[api.Retried](t, r)
	require.Equal(t, old.ID, again.OriginalBuildID)
	require.NotEqual(t, old.ID, again.ID)
	require.NotEqual(t, old.AccessToken, again.AccessToken)
	require.Equal(t, []string{"Build submitted (retry of " + old.ID + ")"}, b.messages(again.ID))
	lines := b.messages(old.ID)
	require.Equal(t, "Retried as build "+again.ID, lines[len(lines)-1])
	require.Equal(t, "failed", b.status(old.ID).Status, "the old one stays as it was")
	builds, _ := b.published.take()
	require.Equal(t, again.ID, builds[0].BuildID)
	status := b.send("GET", "/api/builds/"+again.ID+"/status", map[string]string{"X-Build-Token": again.AccessToken}, "")
	require.Equal(t, 200, status.status)
	require.Contains(t, status.body, `"priority":3,"labels":{"cache":"pods"}`)
	require.Equal(t, 403, b.send("GET", "/api/builds/"+again.ID+"/status", map[string]string{"X-Build-Token": old.AccessToken}, "").status)

	b.remove("builds/" + old.ID) // the copy does not need it
	p := b.poll(w.AccessToken)
	require.Equal(t, again.ID, p.Job.ID)
	for path, want := range map[string]string{"source": "source code", "certs": certs} {
		r := b.send("GET", "/api/builds/"+again.ID+"/"+path, key("X-Worker-Id", w.ID), "")
		require.Equal(t, 200, r.status, path)
		require.Equal(t, want, r.body, path)
	}
	stored, err := os.ReadFile(filepath.Join(b.dir, "builds", again.ID, "certs.zip"))
	require.NoError(t, err)
	require.NotContains(t, string(stored), "secretsecret", "sealed again")
	require.Empty(t, b.temporaries())
}

func TestRetryOfAnyState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	for _, change := range []func(){
		func() {},
		func() { require.Equal(t, 200, b.finish(s.ID, w.ID, "app").status) },
	} {
		change()
		require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "").status)
	}
	waits := b.submit()
	require.Equal(t, 200, b.send("POST", "/api/builds/"+waits.ID+"/retry", key(), "").status)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+waits.ID+"/cancel", key(), "").status)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+waits.ID+"/retry", key(), "").status)
}

func TestRetryWithoutItsFiles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, missing := range []string{"source.zip", "certs.zip"} {
		s := b.submit(part{"certs", "c.zip", "certs"})
		b.remove("builds/" + s.ID + "/" + missing)
		before, builds := b.files(), b.count()
		r := b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "")
		require.Equal(t, 400, r.status, r.body)
		requireProblem(t, r, "Original build source no longer available. Please submit a new build.", "invalid_state")
		require.Equal(t, before, b.files())
		require.Equal(t, builds, b.count())
	}
}

func TestRetryMeetsAFullQueueAndLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t) // a limit of 20 lets 21 in
	s := b.submit(part{"certs", "c.zip", "certs"})
	for range 20 {
		b.submit()
	}
	before := b.files()
	r := b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "")
	require.Equal(t, 503, r.status, r.body)
	requireProblem(t, r, "Build queue full, try again later", "queue_full")
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.Equal(t, before, b.files(), "no file")
	require.Equal(t, 21, b.count(), "no row")
	lines := b.messages(s.ID)
	require.Equal(t, []string{"Build submitted"}, lines, "and no word of it")
}
