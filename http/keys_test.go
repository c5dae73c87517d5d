package http_test

import (
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/http/edge"
	"takt/store"
	"takt/store/postgres"
)

// named makes a key with scopes.
func (b *fixture) named(name string, scopes ...store.Scope) api.MadeKey {
	b.t.Helper()
	body, err := json.Marshal(api.CreateKeyIn{Name: name, Scopes: scopes})
	require.NoError(b.t, err)
	r := b.json("POST", "/admin/keys", map[string]string{"X-Admin-Key": adminKey}, string(body))
	require.Equal(b.t, 201, r.status, r.body)
	made := decode[api.MadeKey](b.t, r)
	require.Regexp(b.t, edge.KeyPattern, made.Key)
	return made
}

// shownKey is a key as it was shown.
type shownKey string

func (k shownKey) headers(more ...string) map[string]string {
	h := map[string]string{"X-API-Key": string(k)}
	for i := 0; i+1 < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

// by submits a build with a key.
func (b *fixture) by(k shownKey, more ...string) api.Submitted {
	b.t.Helper()
	r := b.form("/api/builds", k.headers(more...), source("source code"), part{name: "platform", content: "ios"})
	require.Equal(b.t, 201, r.status, r.body)
	return decode[api.Submitted](b.t, r)
}

// Each route says the scope that the table written by hand gives it, and needs it: a key with all
// others gets a 403 that says so. What a key with that scope alone may do is in rights_test.go.
func TestEachRouteNeedsItsScope(t *testing.T) {
	t.Parallel()
	b := setup(t)
	but := map[store.Scope]shownKey{store.ScopeEnroll: shownKey(b.named("only-admin", store.ScopeAdmin).Key)}
	for _, s := range store.Scopes() {
		others := slices.DeleteFunc(store.Scopes(), func(other store.Scope) bool { return other == s || other == store.ScopeAdmin })
		but[s] = shownKey(b.named("but-"+string(s), others...).Key)
	}
	checked, rights := 0, readRights(t)
	for at, r := range operations() {
		method, path, _ := strings.Cut(at, " ")
		names, ok := rights[method+" "+asInTable(r.Path)]
		require.True(t, ok, at)
		scope, own := scopeIn(names)
		require.Equal(t, [2]any{scope, own}, [2]any{r.Scope, r.Own}, "%s: what the declaration says is not what testdata/rights.txt says", at)
		if scope == "" || own {
			continue
		}
		refused := b.send(method, path, but[scope].headers("X-Worker-Id", "x", "X-Build-Id", "x", "Content-Type", "application/json"), "")
		require.Equal(t, 403, refused.status, "%s without %s", at, scope)
		if method != http.MethodHead {
			require.Contains(t, refused.body, `"code":"missing_scope"`, at)
		}
		checked++
	}
	require.Greater(t, checked, 50)
}

func TestAKeySeesItsOwnBuildsOrAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mine, other := shownKey(b.named("ci", store.ScopeSubmit).Key), shownKey(b.named("other", store.ScopeSubmit, store.ScopeRead).Key)
	operator := shownKey(b.named("operator", store.ScopeOperate).Key)
	build := b.by(mine)
	theirs := b.by(other)
	status := func(k shownKey, method, path string) int {
		r := b.send(method, path, k.headers(), "")
		require.NotEqual(t, 401, r.status)
		return r.status
	}
	for path, ok := range map[string]int{"": 200, "/status": 200, "/why": 200, "/timeline": 200, "/logs": 200, "/download/source": 200, "/download": 400} {
		require.Equal(t, ok, status(mine, "GET", "/api/builds/"+build.ID+path), path)
		require.Equal(t, ok, status(other, "GET", "/api/builds/"+build.ID+path), "who reads sees all")
		require.Equal(t, 403, status(mine, "GET", "/api/builds/"+theirs.ID+path), path)
		require.Equal(t, 403, status(mine, "GET", "/api/builds/"+b.submit().ID+path), path)
	}
	require.Equal(t, []string{build.ID}, b.listed(mine.headers(), ""), "its own only")
	require.Equal(t, []string{build.ID}, b.listed(mine.headers(), "?status=pending"))
	require.Equal(t, 403, status(mine, "GET", "/api/builds/active"))
	require.Equal(t, 200, b.send("GET", "/api/builds/"+theirs.ID+"/status", mine.headers("X-Build-Token", theirs.AccessToken), "").status, "a token opens its build")
	list := b.send("GET", "/api/builds", other.headers(), "")
	require.Contains(t, list.body, `"submitter":"ci"`)
	require.Contains(t, b.send("GET", "/api/builds/"+build.ID+"/status", key(), "").body, `"submitter":"ci"`)

	require.Equal(t, 403, status(other, "POST", "/api/builds/"+build.ID+"/cancel"), "who reads does not change")
	require.Equal(t, 403, status(other, "POST", "/api/builds/"+build.ID+"/retry"))
	again := b.send("POST", "/api/builds/"+build.ID+"/retry", mine.headers(), "")
	require.Equal(t, 200, again.status, again.body)
	require.Contains(t, b.send("GET", "/api/builds/"+decode[api.Retried](t, again).ID, mine.headers(), "").body, `"submitter":"ci"`)
	require.Equal(t, 200, status(mine, "POST", "/api/builds/"+build.ID+"/cancel"))
	require.Equal(t, 200, status(operator, "POST", "/api/builds/"+theirs.ID+"/cancel"))
	audit := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "").body
	require.Contains(t, audit, `"actor":"key operator@127.0.0.1"`)
	require.Contains(t, audit, `"action":"create key","target":"key/ci"`)

	// The same Idempotency-Key of two keys is two.
	first, second := b.by(mine, "Idempotency-Key", "k"), b.by(other, "Idempotency-Key", "k")
	require.NotEqual(t, first.ID, second.ID)
	repeat := b.form("/api/builds", mine.headers("Idempotency-Key", "k"), source("source code"), part{name: "platform", content: "ios"})
	require.Equal(t, first.ID, decode[api.Submitted](t, repeat).ID)
}

func TestARevokedKeyEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.StreamPing = 20 * time.Millisecond })
	admin := map[string]string{"X-Admin-Key": adminKey}
	made := b.named("reader", store.ScopeRead)
	k := shownKey(made.Key)
	stream := tune(t, b.client, b.url+"/api/builds/"+b.submit().ID+"/logs", k.headers("Accept", "text/event-stream"))
	defer stream.cancel()
	require.Equal(t, 200, b.send("GET", "/api/builds", k.headers(), "").status)

	require.Equal(t, 204, b.send("DELETE", "/admin/keys/reader", admin, "").status)
	r := b.send("GET", "/api/builds", k.headers(), "")
	require.Equal(t, 403, r.status)
	require.Contains(t, r.body, "invalid_api_key")
	for over := time.After(waitFor); ; {
		select {
		case _, more := <-stream.events:
			if more {
				continue
			}
		case <-over:
			t.Fatal("the stream goes on")
		}
		break
	}
	require.Equal(t, 204, b.send("DELETE", "/admin/keys/reader", admin, "").status, "again")
	require.Equal(t, 404, b.send("DELETE", "/admin/keys/nobody", admin, "").status)
	require.Equal(t, 409, b.json("POST", "/admin/keys", admin, `{"name":"reader","scopes":["read"]}`).status, "a name is never used again")
	list := b.send("GET", "/admin/keys", admin, "")
	require.Contains(t, list.body, `"name":"reader","scopes":["read"],"state":"revoked","created_by":"admin@127.0.0.1"`)
	require.NotContains(t, list.body, made.Key)

	short := decode[api.MadeKey](t, b.json("POST", "/admin/keys", admin, `{"name":"short","scopes":["read"],"expires":"1s"}`))
	require.Eventually(t, func() bool {
		return b.send("GET", "/api/builds", shownKey(short.Key).headers(), "").status == 403
	}, waitFor, tick, "it expires")
	for _, bad := range []string{`{"name":"a b","scopes":["read"]}`, `{"name":"a"}`, `{"name":"a","scopes":["root"]}`, `{"name":"a","scopes":["enroll","read"]}`, `{"name":"a","scopes":["read"],"expires":"soon"}`, `{"name":"a","scopes":["read"],"expires":"999999999d"}`} {
		require.Equal(t, 400, b.json("POST", "/admin/keys", admin, bad).status, bad)
	}
}

// A key with the most builds pending that it may have: submits and retries are refused, others not.
func TestAKeyHasAWeightAndMostPendingBuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := map[string]string{"X-Admin-Key": adminKey}
	made := decode[api.MadeKey](t, b.json("POST", "/admin/keys", admin, `{"name":"ci","scopes":["submit"],"weight":2,"max_pending":1}`))
	ci, other := shownKey(made.Key), shownKey(b.named("other", store.ScopeSubmit).Key)
	first := b.by(ci)
	send := func() reply {
		return b.form("/api/builds", ci.headers(), source("source code"), part{name: "platform", content: "android"})
	}
	for _, r := range []reply{send(), b.send("POST", "/api/builds/"+first.ID+"/retry", ci.headers(), ""), b.send("POST", "/api/builds/"+first.ID+"/retry", map[string]string{"X-Build-Token": first.AccessToken}, "")} {
		require.Equal(t, 429, r.status, r.body)
		require.Contains(t, r.body, `"code":"key_queue_full"`)
		require.Contains(t, r.body, "Key ci may have 1 pending builds at most: wait until one starts, or cancel some")
		require.NotEmpty(t, r.header.Get("Retry-After"))
	}
	b.by(other)
	require.Equal(t, 429, b.announce("/api/builds", "X-API-Key: "+string(ci)).Status, "before the body is sent")

	r := b.json("PATCH", "/admin/keys/ci", admin, `{"max_pending":2,"reason":"more"}`)
	require.Equal(t, 200, r.status, r.body)
	require.Contains(t, r.body, `"weight":2,"max_pending":2`)
	require.Equal(t, 201, send().status)
	require.Equal(t, 429, send().status)
	require.Equal(t, 200, b.json("PATCH", "/admin/keys/ci", admin, `{"weight":3,"max_pending":0}`).status)
	require.Equal(t, 201, send().status, "0 is any number")
	require.Contains(t, b.send("GET", "/admin/keys", admin, "").body, `"weight":3,"max_pending":0`)
	audit := b.send("GET", "/admin/audit", admin, "").body
	require.Contains(t, audit, `"action":"limit key","target":"key/ci"`)
	require.Contains(t, audit, `"reason":"more"`)

	require.Equal(t, 404, b.json("PATCH", "/admin/keys/nobody", admin, `{"weight":1}`).status)
	for _, bad := range []string{`{}`, `{"weight":0}`, `{"weight":1001}`, `{"max_pending":-1}`, `{"max_pending":1000001}`} {
		require.Equal(t, 400, b.json("PATCH", "/admin/keys/ci", admin, bad).status, bad)
	}
	require.Equal(t, 400, b.json("POST", "/admin/keys", admin, `{"name":"a","scopes":["read"],"weight":-1}`).status)
}

// A token makes one key, of a worker, whoever is faster.
func TestAWorkerEnrollsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	token := shownKey(b.named("token", store.ScopeEnroll).Key)
	require.Equal(t, 403, b.send("GET", "/api/builds", token.headers(), "").status, "it opens nothing else")
	require.Equal(t, 403, b.json("POST", "/api/workers/enroll", key(), `{"name":"w"}`).status, "the API key is no token")
	require.Equal(t, 400, b.json("POST", "/api/workers/enroll", token.headers(), `{}`).status)
	var replies [4]reply
	var wg sync.WaitGroup
	for i := range replies {
		wg.Go(func() { replies[i] = b.json("POST", "/api/workers/enroll", token.headers(), `{"name":"mac mini/1"}`) })
	}
	wg.Wait()
	made := map[string]bool{}
	for _, r := range replies {
		if r.status == 201 {
			k := decode[api.MadeKey](t, r)
			made[k.Key] = true
			require.Regexp(t, `^mac-mini-1-[a-z0-9]{8}$`, k.Name)
			continue
		}
		require.Equal(t, 403, r.status, r.body)
	}
	require.Len(t, made, 1)
	for k := range made {
		require.Equal(t, 200, b.json("POST", "/api/workers/register", shownKey(k).headers(), `{"name":"w","capabilities":{}}`).status)
		require.Equal(t, 403, b.send("GET", "/api/builds", shownKey(k).headers(), "").status)
	}
}

// A controller that could not read the keys yet calls none of them wrong.
func TestKeysThatAreNotKnownYetAreNotWrong(t *testing.T) {
	t.Parallel()
	b := setupWith(t, func(d *takthttp.Deps) { d.Ring = &store.KeyRing{} })
	r := b.send("GET", "/api/builds", shownKey("takt_0123456789-0123456789").headers(), "")
	require.Equal(t, 503, r.status)
	require.NotEmpty(t, r.header.Get("Retry-After"))
	require.Equal(t, 200, b.send("GET", "/api/builds", key(), "").status)
}

// What another controller makes and revokes is known once the ring was refreshed, and the
// database has the digest only.
func TestTwoControllersKnowTheSameKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ring := &store.KeyRing{}
	another := postgres.NewKeys(b.db, ring)
	k := b.named("ci", store.ScopeSubmit)
	require.NoError(t, another.Refresh(t.Context()))
	found, err := ring.Find(k.Key)
	require.NoError(t, err)
	require.Equal(t, "ci", found.Name)
	require.NoError(t, another.RecordUse(t.Context()))

	var row string
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT access_keys::text FROM access_keys`).Scan(&row))
	require.NotContains(t, row, k.Key)
	var digest []byte
	var used *time.Time
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT digest, last_used_at FROM access_keys`).Scan(&digest, &used))
	sum := sha256.Sum256([]byte(k.Key))
	require.Equal(t, sum[:], digest)
	require.NotNil(t, used)

	require.NoError(t, another.Revoke(t.Context(), "ci"))
	found, err = ring.Find(k.Key)
	require.NoError(t, err)
	require.Nil(t, found, "at once here")
}

func TestSessionsOfKeysWithNames(t *testing.T) {
	t.Parallel()
	d := setupDash(t, "")
	log := func(k api.MadeKey) {
		r := d.login(k.Key, "tester", nil)
		require.Equal(t, 303, r.status, r.body)
		d.cookie, _, _ = strings.Cut(r.header.Get("Set-Cookie"), ";")
	}
	require.Equal(t, 403, d.login(d.named("blind", store.ScopeSubmit).Key, "tester", nil).status)
	build := d.submit().ID
	log(d.named("reader", store.ScopeRead, store.ScopeSubmit))
	require.Equal(t, 403, d.act("/builds/"+build+"/cancel", "").status)

	// A page needs the scope of the endpoint that gives the same data, and links need that of their page.
	nav := regexp.MustCompile(`(?s)<nav.*</nav>`)
	for scope, may := range map[store.Scope]string{store.ScopeRead: "", store.ScopeOperate: "/throttle /heijunka /system /notices", store.ScopeAdmin: "/throttle /heijunka /system /notices /tree /audit /keys"} {
		log(d.named("page-"+string(scope), store.ScopeRead, scope))
		overview := nav.FindString(d.get("/overview").body)
		require.Contains(t, overview, `href="/fleet"`)
		for path := range strings.FieldsSeq("/throttle /heijunka /system /notices /tree /audit /keys") {
			open := slices.Contains(strings.Fields(may), path)
			require.Equal(t, map[bool]int{true: 200, false: 403}[open], d.get(path).status, "%s with %s", path, scope)
			if !open {
				require.Equal(t, 403, d.ask("GET", path, nil, map[string]string{"Accept": "text/event-stream"}).status, "%s followed with %s", path, scope)
				require.NotContains(t, overview, `href="`+path+`"`, "%s with %s", path, scope)
			}
		}
	}

	log(d.named("boss", store.ScopeAdmin))
	require.Contains(t, d.get("/keys").body, "reader")
	r := d.ask("POST", "/keys", url.Values{"name": {"fresh"}, "scope": {"read"}, "reason": {"x"}}, nil)
	require.Equal(t, 200, r.status, r.body)
	require.Contains(t, r.body, "takt_")
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	require.Equal(t, 303, d.act("/keys/fresh/revoke", "reason=x").status)
	require.Contains(t, d.get("/audit").body, "tester (key boss)")
	require.Equal(t, 303, d.act("/keys/boss/revoke", "reason=x").status)
	require.Contains(t, d.get("/builds").header.Get("Location"), "/login", "the session ended with its key")
}

// A key submits with no higher priority than it may, and what is higher is refused, not lowered. An
// operator's key and the API key may submit with any.
func TestAKeySubmitsUpToItsPriority(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := map[string]string{"X-Admin-Key": adminKey}
	ci, operator := shownKey(b.named("ci", store.ScopeSubmit).Key), shownKey(b.named("ops", store.ScopeSubmit, store.ScopeOperate).Key)
	require.Contains(t, b.send("GET", "/admin/keys", admin, "").body, `"max_pending":0,"max_priority":0`, "of a new key")
	submit := func(header map[string]string, priority string) reply {
		return b.form("/api/builds", header, source("source code"), part{name: "platform", content: "ios"}, part{name: "priority", content: priority})
	}
	refused := func(r reply, most string) {
		t.Helper()
		require.Equal(t, 403, r.status, r.body)
		require.Contains(t, r.body, `"code":"priority_too_high"`)
		require.Contains(t, r.body, "Key ci may submit builds with a priority of at most "+most)
	}
	refused(submit(ci.headers(), "1"), "0")
	for _, header := range []map[string]string{operator.headers(), key()} {
		require.Equal(t, 201, submit(header, "10").status)
	}
	require.Equal(t, 201, submit(ci.headers(), "-3").status)
	first := decode[api.Submitted](t, submit(ci.headers(), ""))

	require.Equal(t, 200, b.json("PATCH", "/admin/keys/ci", admin, `{"max_priority":5}`).status)
	high := decode[api.Submitted](t, submit(ci.headers(), "5"))
	refused(submit(ci.headers(), "6"), "5")
	require.Equal(t, 200, b.json("PATCH", "/admin/keys/ci", admin, `{"max_priority":-1}`).status)
	refused(submit(ci.headers(), ""), "-1")
	for _, build := range []api.Submitted{first, high} {
		retry := "/api/builds/" + build.ID + "/retry"
		refused(b.send("POST", retry, ci.headers(), ""), "-1")
		refused(b.send("POST", retry, map[string]string{"X-Build-Token": build.AccessToken}, ""), "-1")
	}
	require.Equal(t, 200, b.send("POST", "/api/builds/"+high.ID+"/retry", operator.headers(), "").status)

	require.Equal(t, 201, b.json("POST", "/admin/keys", admin, `{"name":"fast","scopes":["submit"],"max_priority":10}`).status)
	require.Contains(t, b.send("GET", "/admin/audit", admin, "").body, `"max_priority":10`)
	for _, bad := range []string{`{"max_priority":11}`, `{"max_priority":-11}`} {
		require.Equal(t, 400, b.json("PATCH", "/admin/keys/ci", admin, bad).status, bad)
	}
	require.Equal(t, 400, b.json("POST", "/admin/keys", admin, `{"name":"a","scopes":["read"],"max_priority":11}`).status)

	_, err := b.pool.Exec(t.Context(), `INSERT INTO access_keys (name, digest, scopes, created_by) VALUES ('old', 'x', '{submit}', 'x')`)
	require.NoError(t, err)
	require.Regexp(t, `"name":"old"[^}]*"max_priority":10\}`, b.send("GET", "/admin/keys", admin, "").body, "of a key of before")
}
