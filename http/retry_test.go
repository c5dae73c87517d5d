package http_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
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

// A token can't fill the queue with retries of its build, nor with retries of those,
// nor can it have them built before others.
func TestOneRetryOfABuildWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.submit()
	retry := func(of api.Submitted) reply {
		t.Helper()
		return b.send("POST", "/api/builds/"+of.ID+"/retry?priority=10", map[string]string{"X-Build-Token": of.AccessToken, "Content-Type": "application/json"}, `{"priority":10}`)
	}
	var mu sync.Mutex
	var made []api.Submitted
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			r := retry(s)
			if r.status == 200 {
				mu.Lock()
				made = append(made, decode[api.Submitted](t, r))
				mu.Unlock()
				return
			}
			requireProblem(t, r, "A retry of this build is waiting already", "retry_waiting")
		})
	}
	wg.Wait()
	require.Len(t, made, 1)
	require.Equal(t, 0, b.status(made[0].ID).Priority)
	files := b.files()
	require.Equal(t, 409, retry(made[0]).status, "nor of the retry")
	require.Equal(t, files, b.files())
	require.Equal(t, 2, b.count())
	require.Equal(t, 200, b.send("POST", "/api/builds/"+made[0].ID+"/cancel", key(), "").status)
	require.Equal(t, 200, retry(made[0]).status)
	require.Equal(t, 409, retry(s).status)
}

func TestBuildTokensExpire(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.BuildTokenLife = 7 * 24 * time.Hour })
	s := b.submit()
	for _, age := range []struct {
		days   int
		status int
	}{{6, 200}, {8, 403}} {
		_, err := b.pool.Exec(t.Context(), `UPDATE builds SET submitted_at = now() - make_interval(days => $1)`, age.days)
		require.NoError(t, err)
		for _, route := range []string{"GET status", "GET logs", "POST retry"} {
			method, path, _ := strings.Cut(route, " ")
			r := b.send(method, "/api/builds/"+s.ID+"/"+path, map[string]string{"X-Build-Token": s.AccessToken}, "")
			require.Equal(t, age.status, r.status, route)
			if age.status == 403 {
				requireProblem(t, r, "Invalid or expired build token", "forbidden")
			}
		}
		require.Equal(t, 200, b.send("GET", "/api/builds/"+s.ID+"/status", key("X-Build-Token", s.AccessToken), "").status)
	}
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
