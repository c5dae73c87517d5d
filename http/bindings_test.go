package http_test

import (
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/migrations"
	"takt/store"
)

// enrolledKey makes a key of a worker, as takt worker enroll does.
func (b *fixture) enrolledKey() (name string, k shownKey) {
	b.t.Helper()
	token := shownKey(b.named("token-"+strings.ToLower(store.NewUUID()), store.ScopeEnroll).Key)
	r := b.json("POST", "/api/workers/enroll", token.headers(), `{"name":"w"}`)
	require.Equal(b.t, 201, r.status, r.body)
	made := decode[api.MadeKey](b.t, r)
	return made.Name, shownKey(made.Key)
}

func (b *fixture) joins(k shownKey, id, instance string) reply {
	b.t.Helper()
	body := `{"id":"` + id + `","name":"` + id + `","capabilities":{}}`
	if instance != "" {
		body = strings.Replace(body, `{}`, `{},"instance":"`+instance+`"`, 1)
	}
	return b.json("POST", "/api/workers/register", k.headers(), body)
}

func requireMismatch(t *testing.T, r reply, where string) {
	t.Helper()
	require.Equal(t, 403, r.status, "%s: %s", where, r.body)
	require.Contains(t, r.body, `"code":"worker_mismatch"`, where)
}

// keyOf returns a key as operators see it.
func (b *fixture) keyOf(name string) api.Key {
	b.t.Helper()
	list := decode[api.Keys](b.t, b.send("GET", "/admin/keys", map[string]string{"X-Admin-Key": adminKey}, "")).Keys
	at := slices.IndexFunc(list, func(k api.Key) bool { return k.Name == name })
	require.NotEqual(b.t, -1, at)
	return list[at]
}

func (b *fixture) bind(name, worker string) reply {
	b.t.Helper()
	return b.json("PATCH", "/admin/keys/"+name, map[string]string{"X-Admin-Key": adminKey}, `{"worker":"`+worker+`","reason":"set up anew"}`)
}

// Who has enrolled and does not register takes the builds of no other worker.
func TestAnEnrolledKeyWithoutAWorkerGetsNoBuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, fresh := b.enrolledKey()
	other := b.register("other")
	for _, ask := range [][]string{
		{"GET", "/api/workers/poll?worker_id=" + other.ID},
		{"POST", "/api/workers/poll", "X-Worker-Token", other.AccessToken},
		{"POST", "/api/workers/unregister", "X-Worker-Token", other.AccessToken},
	} {
		r := b.json(ask[0], ask[1], fresh.headers(ask[2:]...), "{}")
		require.Equal(t, 401, r.status, r.body)
		require.Contains(t, r.body, `"code":"invalid_token"`, "so that a worker registers, and goes on")
	}
	require.Equal(t, 200, b.joins(fresh, "mine", "a").status)
}

// Whatever route of a worker is asked, and wherever it names the worker, the key of one worker is
// not that of another.
func TestAKeyOfAWorkerIsNoOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	name, mine := b.enrolledKey()
	require.Equal(t, 200, b.joins(mine, "mine", "a").status)
	build, other := b.assigned()
	held, id := "/api/builds/"+build.ID, other.ID
	checked := 0
	for at, r := range operations() {
		if r.Scope != store.ScopeWorker {
			continue
		}
		method, _, _ := strings.Cut(at, " ")
		path := strings.Replace(r.Path, "/api/builds/:id", held, 1)
		path = strings.Replace(path, ":id", id, 1)
		refused := b.send(method, path, mine.headers("X-Worker-Id", id, "X-Build-Id", build.ID, "Content-Type", "application/json"), "{}")
		require.Equal(t, 403, refused.status, at)
		if method != http.MethodHead {
			requireMismatch(t, refused, at)
		}
		checked++
	}
	require.GreaterOrEqual(t, checked, 16)
	body := `{"id":"` + id + `","worker_id":"` + id + `","build_id":"` + build.ID + `","name":"x","capabilities":{},"status":"healthy","run_at":1,"duration_ms":1,"checks":[]}`
	for _, ask := range [][]string{
		{"POST", "/api/workers/register"},
		{"GET", "/api/workers/poll?worker_id=" + id},
		{"POST", "/api/workers/poll", "X-Worker-Token", other.AccessToken},
		{"POST", "/api/workers/unregister", "X-Worker-Token", other.AccessToken},
		{"POST", "/api/workers/" + id + "/unregister"},
		{"POST", held + "/heartbeat?worker_id=" + id},
		{"POST", "/api/diagnostics/report"},
	} {
		requireMismatch(t, b.json(ask[0], ask[1], mine.headers(ask[2:]...), body), ask[1])
	}
	requireMismatch(t, b.form("/api/workers/upload", mine.headers(), part{name: "build_id", content: build.ID}, part{name: "worker_id", content: id},
		part{name: "success", content: "true"}, part{"result", "x.ipa", "stolen"}), "upload")
	// Who names no worker is the key's.
	for _, path := range []string{"/api/workers/fail", "/api/workers/heartbeat"} {
		r := b.json("POST", path, mine.headers("X-Worker-Instance", "a"), `{"build_id":"`+build.ID+`","error":"x"}`)
		require.Equal(t, 403, r.status, r.body)
		require.Contains(t, r.body, `"code":"not_assigned"`)
	}
	require.Equal(t, "assigned", b.status(build.ID).Status)
	require.Equal(t, "mine", b.keyOf(name).Worker)
	require.Equal(t, 200, b.json("POST", held+"/heartbeat?worker_id="+id, key(), `{}`).status, "its own worker goes on")

	// Operators are told, once.
	require.Eventually(t, func() bool { return b.worker("mine").Conflict != nil }, waitFor, tick)
	audit := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "").body
	require.Equal(t, 1, strings.Count(audit, `"action":"use key of a worker","target":"key/`+name+`"`), audit)
	require.Contains(t, audit, `"actor":"key `+name+`@127.0.0.1"`)
}

// A key that was enrolled is that of the first worker that registers with it, and stays so
// until it is freed.
func TestAnEnrolledKeyBelongsToTheFirstWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	name, k := b.enrolledKey()
	require.True(t, b.keyOf(name).Enrolled)
	ids := []string{"w0", "w1", "w2", "w3"}
	replies := make([]reply, len(ids))
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() { replies[i] = b.joins(k, id, "a") })
	}
	wg.Wait()
	owner := b.keyOf(name).Worker
	for i, r := range replies {
		if ids[i] == owner {
			require.Equal(t, 200, r.status, r.body)
		} else {
			requireMismatch(t, r, ids[i])
		}
	}
	require.Equal(t, 200, b.joins(k, owner, "a").status, "again")
	anonymous := b.json("POST", "/api/workers/register", k.headers(), `{"name":"x","capabilities":{},"instance":"a"}`)
	require.Equal(t, owner, decode[api.Registered](t, anonymous).ID, "who has no id is the key's worker")

	require.Equal(t, 200, b.bind(name, "").status)
	require.Equal(t, 200, b.joins(k, "anew", "b").status)
	requireMismatch(t, b.joins(k, owner, "a"), "the machine before")
	require.Equal(t, 200, b.send("DELETE", "/api/workers/anew", key(), "").status)
	require.Empty(t, b.keyOf(name).Worker)
	require.Equal(t, 200, b.joins(k, "after", "c").status, "a worker that was deleted registers as another one")
	require.Equal(t, 400, b.bind(name, "a b").status)

	// A key that was made is for any worker, until it is bound.
	made := shownKey(b.named("made", store.ScopeWorker).Key)
	require.Equal(t, 200, b.joins(made, "m1", "").status)
	require.Equal(t, 200, b.joins(made, "m2", "").status)
	require.Equal(t, 200, b.bind("made", "m2").status)
	requireMismatch(t, b.joins(made, "m1", ""), "bound")
	require.Equal(t, 200, b.joins(made, "m2", "").status)
	require.Equal(t, 200, b.bind("made", "").status)
	require.Equal(t, 200, b.joins(made, "m1", "").status)
	require.Equal(t, 200, b.joins(made, "m2", "").status)
	require.Contains(t, b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "").body, `"worker":"m2"`)
}

// While a worker's process lives, its key lets no other process be the worker: neither one with
// another name nor one without.
func TestAKeyOfAWorkerIsForOneProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	name, k := b.enrolledKey()
	first := decode[api.Registered](t, b.joins(k, "w", "a"))
	build := b.submit()
	p := decode[api.PollReply](t, b.send("POST", "/api/workers/poll", k.headers("X-Worker-Token", first.AccessToken, "X-Worker-Instance", "a"), ""))
	require.Equal(t, build.ID, p.Job.ID)
	refused := func(r reply) {
		t.Helper()
		require.Equal(t, 409, r.status, r.body)
		require.Contains(t, r.body, `"code":"duplicate_worker"`)
	}
	for _, instance := range []string{"b", ""} {
		more := []string{"X-Worker-Instance", instance, "X-Worker-Id", "w", "X-Build-Id", build.ID}
		refused(b.joins(k, "w", instance))
		refused(b.send("POST", "/api/workers/poll?worker_id=w", k.headers(more...), ""))
		refused(b.send("GET", "/api/builds/"+build.ID+"/source", k.headers(more...), ""))
		refused(b.json("POST", "/api/builds/"+build.ID+"/heartbeat?worker_id=w", k.headers(more...), `{}`))
		refused(b.json("POST", "/api/builds/"+build.ID+"/logs", k.headers(more...), `{"level":"info","message":"x"}`))
		refused(b.json("POST", "/api/workers/w/unregister", k.headers(more...), ""))
	}
	require.Equal(t, 200, b.json("POST", "/api/builds/"+build.ID+"/heartbeat?worker_id=w", k.headers("X-Worker-Instance", "a"), `{}`).status)
	require.Equal(t, 401, b.send("POST", "/api/workers/poll", map[string]string{"X-Worker-Token": p.AccessToken, "X-Worker-Instance": "a"}, "").status, "a session alone is no right")
	require.Eventually(t, func() bool {
		audit := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "").body
		return strings.Contains(audit, `"action":"use key of a worker","target":"key/`+name+`"`) && strings.Contains(audit, "Another process uses this worker id")
	}, waitFor, tick)
	require.NotNil(t, b.worker("w").Conflict)
}

// Workers of 0.1.0, which name no process, go on with an enrolled key.
func TestOldWorkersWithEnrolledKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	name, k := b.enrolledKey()
	_, err := b.pool.Exec(t.Context(), `UPDATE access_keys SET enrolled = false`)
	require.NoError(t, err)
	up, err := fs.ReadFile(migrations.Files(), "0026_key_worker.up.sql")
	require.NoError(t, err)
	_, err = b.pool.Exec(t.Context(), string(up))
	require.NoError(t, err)
	require.True(t, b.keyOf(name).Enrolled, "one from before the upgrade")
	require.False(t, b.keyOf(b.named("made", store.ScopeWorker).Name).Enrolled)
	for range 2 {
		w := decode[api.Registered](t, b.joins(k, "w", ""))
		build := b.submit()
		p := decode[api.PollReply](t, b.send("GET", "/api/workers/poll", k.headers("X-Worker-Token", w.AccessToken), ""))
		require.Equal(t, build.ID, p.Job.ID)
		require.Equal(t, 200, b.send("GET", "/api/builds/"+build.ID+"/source", k.headers("X-Worker-Id", "w"), "").status)
		require.Equal(t, 200, b.json("POST", "/api/workers/heartbeat", k.headers(), `{"build_id":"`+build.ID+`"}`).status)
		require.Equal(t, 200, b.json("POST", "/api/workers/fail", k.headers(), `{"build_id":"`+build.ID+`","error":"x"}`).status)
	}
	require.Equal(t, "w", b.keyOf(name).Worker)
	require.Equal(t, 200, b.json("POST", "/api/workers/w/unregister", k.headers(), "").status)
	require.Equal(t, 200, b.joins(k, "w", "a").status, "the machine was upgraded")
}
