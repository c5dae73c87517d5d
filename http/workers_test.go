package http_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// As the installer sends it.
	r := b.json("POST", "/api/workers/register", key(), `{"name":"Mac","capabilities":{"platforms":["iOS"],"cpu":{"cores":8}},
		"publicIdentifier":"x","apiKey":"leaked-by-installer","active_build_count":0}`)
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "registered", r)
	w := decode[api.Registered](t, r)
	require.Regexp(t, `^[A-Za-z0-9_-]{21}$`, w.ID)
	require.Regexp(t, `^[A-Za-z0-9_-]{32}$`, w.AccessToken)
	require.Equal(t, "registered", w.Status)
	require.Equal(t, "ghcr.io/sethwebster/expo-free-agent-base:0.1.23", w.BaseImageID)

	r = b.json("POST", "/api/workers/register", key(), `{"id":"`+w.ID+`","name":"Other","capabilities":{}}`)
	again := decode[api.Registered](t, r)
	require.Equal(t, "re-registered", again.Status)
	require.Equal(t, w.ID, again.ID)
	require.NotEqual(t, w.AccessToken, again.AccessToken)

	r = b.json("POST", "/api/workers/register", key(), `{"id":"my-own","name":"Own","capabilities":{}}`)
	own := decode[api.Registered](t, r)
	require.Equal(t, "my-own", own.ID)
	require.Equal(t, "registered", own.Status)
	for _, secret := range []string{"leaked-by-installer", w.AccessToken, again.AccessToken} {
		require.NotContains(t, b.logs.String(), secret)
	}
}

func TestRegisterRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for body, details := range map[string]string{
		``:                                 "name is required",
		`{}`:                               "name is required",
		`{"name":null,"capabilities":{}}`:  "name is required",
		`{"name":"w"}`:                     "capabilities are required",
		`{"name":"w","capabilities":null}`: "capabilities are required",
		`{"name":"","capabilities":{}}`:    "name must be a text that is not empty",
		`{"name":7,"capabilities":{}}`:     "name must be a text that is not empty",
		`{"name":"w","capabilities":[]}`:   "capabilities must be an object",
		`{"name":"w","capabilities":"x"}`:  "capabilities must be an object",
		`{"name":"w","capabilities":{"a":"\u0000"}}`:                             "capabilities must be UTF-8 text without NUL",
		`{"name":"w","capabilities":{"a":"` + strings.Repeat("x", 17000) + `"}}`: "capabilities must have at most 16384 bytes",
		`{"name":"` + strings.Repeat("ü", 201) + `","capabilities":{}}`:          "name must have at most 200 characters",
		`{"name":"w","capabilities":{"maxConcurrentBuilds":0}}`:                  "maxConcurrentBuilds must be a whole number of at least 1",
		`{"name":"w","capabilities":{"maxConcurrentBuilds":1.5}}`:                "maxConcurrentBuilds must be a whole number of at least 1",
		`{"name":"w","capabilities":{"maxConcurrentBuilds":"2"}}`:                "maxConcurrentBuilds must be a whole number of at least 1",
		`{"name":"w","capabilities":{"platforms":7}}`:                            "platforms must be a list of at most 16 texts",
		`{"id":"../w","name":"w","capabilities":{}}`:                             "id must be 1 to 64 characters of A-Z a-z 0-9 _ -",
		`{"id":7,"name":"w","capabilities":{}}`:                                  "id must be 1 to 64 characters of A-Z a-z 0-9 _ -",
		`{"id":"` + strings.Repeat("x", 65) + `","name":"w","capabilities":{}}`:  "id must be 1 to 64 characters of A-Z a-z 0-9 _ -",
	} {
		r := b.json("POST", "/api/workers/register", key(), body)
		require.Equal(t, 422, r.status, "%.60s: %s", body, r.body)
		requireProblem(t, r, "Registration failed", "registration_failed")
		require.Equal(t, details, decode[api.Problem](t, r).Details)
	}
	for _, body := range []string{`{`, `[]`, `"x"`, `{"name":"w","capabilities":{}`, `{"name":"w","capabilities":{}}}`} {
		r := b.json("POST", "/api/workers/register", key(), body)
		require.Equal(t, 400, r.status, body)
		require.Equal(t, "invalid_argument", decode[api.Problem](t, r).Code)
	}
	r := b.send("POST", "/api/workers/register", key("Content-Type", "application/x-www-form-urlencoded"), "name=w")
	require.Equal(t, 415, r.status)
	for _, body := range []string{
		`{"name":"w","capabilities":{"platforms":"ios","maxConcurrentBuilds":2}}`,
		`{"id":"","name":"w","capabilities":{"platforms":null,"maxConcurrentBuilds":null}}`,
		`{"id":null,"name":"w\u0000","capabilities":{"platforms":[]}}`,
	} {
		require.Equal(t, 200, b.json("POST", "/api/workers/register", key(), body).status, body)
	}
}

func TestWorkerGetsItsPlatformsAndSlots(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for range 3 {
		b.submit() // ios
	}
	register := func(capabilities string) api.Registered {
		return decode[api.Registered](t, b.json("POST", "/api/workers/register", key(), `{"name":"w","capabilities":`+capabilities+`}`))
	}
	require.Nil(t, b.poll(register(`{"platforms":["android"]}`).AccessToken).Job)
	require.Nil(t, b.poll(register(`{"platforms":["windows"]}`).AccessToken).Job, "builds nothing known, not everything")
	require.Nil(t, b.poll(register(`{"platforms":["a b"]}`).AccessToken).Job)
	w := register(`{"platforms":[" iOS "],"maxConcurrentBuilds":2}`)
	p := b.poll(w.AccessToken)
	require.NotNil(t, p.Job)
	q := b.poll(p.AccessToken)
	require.NotNil(t, q.Job)
	require.NotEqual(t, p.Job.ID, q.Job.ID)
	require.Nil(t, b.poll(q.AccessToken).Job, "two slots are two slots")
}

func TestUnregisterGivesBuildsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	r := b.send("POST", "/api/workers/unregister", key("X-Worker-Token", w.AccessToken, "Content-Type", "application/json"), "")
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "unregistered", r)
	require.Equal(t, 1, decode[api.Unregistered](t, r).BuildsReassigned)
	st := b.status(s.ID)
	require.Equal(t, "pending", st.Status)
	require.Nil(t, st.WorkerID)

	r = b.send("POST", "/api/workers/unregister", key("X-Worker-Token", w.AccessToken), "")
	require.Equal(t, 401, r.status)
	requireProblem(t, r, "Invalid worker token", "invalid_token")
	r = b.send("POST", "/api/workers/unregister", key(), "")
	require.Equal(t, 401, r.status)
	requireProblem(t, r, "Missing X-Worker-Token header", "unauthorized")
}

func TestUnregisterByID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, w := b.assigned()
	r := b.send("POST", "/api/workers/"+w.ID+"/unregister", key(), "")
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, 1, decode[api.Unregistered](t, r).BuildsReassigned)
	for _, id := range []string{"unknown", "..%2fw"} {
		require.Equal(t, 404, b.send("POST", "/api/workers/"+id+"/unregister", key(), "").status)
	}
}

func TestWhatTheAPIKeyChangesIsAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.register("w")
	require.Equal(t, 200, b.send("POST", "/api/workers/"+w.ID+"/drain", key(), "").status)
	require.Equal(t, 200, b.send("POST", "/api/workers/"+w.ID+"/resume", key(), "").status)
	require.Equal(t, 404, b.send("DELETE", "/api/workers/nobody", key(), "").status)
	require.Less(t, b.json("POST", "/api/config", key(), `{"portal_id":1,"action_id":2,"max_throughput":3,"time_period":4,"time_unit":"seconds"}`).status, 300)
	require.Equal(t, 204, b.send("DELETE", "/api/config/1/2", key(), "").status)
	r := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "")
	require.Equal(t, 200, r.status, r.body)
	var got []string
	for _, e := range decode[api.Audit](t, r).Entries {
		require.Regexp(t, `^api@`, e.Actor)
		got = append(got, e.Action+" "+e.Target+": "+*e.Outcome)
	}
	require.Equal(t, []string{
		"delete rate 1/2: done", "set rate 1/2: done", "delete worker nobody: Worker not found",
		"resume worker " + w.ID + ": done", "drain worker " + w.ID + ": done",
	}, got)
}

// paged is a store of workers whose pages after the first wait for gate, and fail if it
// says so.
type paged struct {
	takthttp.Workers
	gate chan error
}

func (p paged) List(ctx context.Context, f store.WorkerFilter) ([]store.WorkerDetail, error) {
	if f.Limit > 200 {
		return nil, errors.New("so many rows at once")
	}
	if f.After > 0 {
		if err := <-p.gate; err != nil {
			return nil, err
		}
	}
	return p.Workers.List(ctx, f)
}

// A long list is sent while it is read, page by page, and is complete; one that can't be
// read to its end is cut off.
func TestLongListsAreSentPageByPage(t *testing.T) {
	t.Parallel()
	gate := make(chan error, 10)
	b := setupWith(t, func(d *takthttp.Deps) { d.Workers = paged{d.Workers, gate} })
	_, err := b.pool.Exec(t.Context(), `WITH n AS (SELECT 'w' || i AS id FROM generate_series(1, 450) i),
		d AS (INSERT INTO worker_details (worker_id, name, capabilities) SELECT id, id, '{}' FROM n)
		INSERT INTO workers (id, slots) SELECT id, 1 FROM n`)
	require.NoError(t, err)
	begin := func() (*http.Response, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/api/workers", http.NoBody)
		require.NoError(t, err)
		req.Header.Set("X-API-Key", apiKey)
		resp, err := b.client.Transport.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		const head = `{"workers":[{"id":"w`
		got := make([]byte, len(head))
		_, err = io.ReadFull(resp.Body, got)
		require.NoError(t, err, "it comes before the second page was read")
		require.Equal(t, head, string(got)) //nolint:testifylint // a part of JSON
		return resp, head
	}
	b.client = browserClient(t) // the other one reads all of a reply
	resp, head := begin()
	gate <- nil
	gate <- nil
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	list := decode[api.WorkerList](t, reply{body: head + string(rest)})
	require.Equal(t, 450, list.Total)
	ids := map[string]bool{}
	for _, w := range list.Workers {
		ids[w.ID] = true
	}
	require.Len(t, ids, 450, "each once")

	resp, _ = begin()
	gate <- errors.New("the database has gone")
	_, err = io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "nobody takes a part for all of it")
	require.NoError(t, resp.Body.Close())

	require.Len(t, decode[api.WorkerList](t, b.send("GET", "/api/workers?limit=7", key(), "")).Workers, 7)
	gate <- nil
	require.Len(t, decode[api.WorkerList](t, b.send("GET", "/api/workers?limit=207", key(), "")).Workers, 207)
	require.Len(t, decode[api.WorkerList](t, b.send("GET", "/api/workers?limit=200", key(), "")).Workers, 200)

	_, err = b.pool.Exec(t.Context(), `WITH n AS (
			INSERT INTO builds (id, platform, token_hash, state, worker_id) SELECT 'b' || i, 'ios', '\x00', 'building', 'w1' FROM generate_series(1, 410) i RETURNING id, seq)
		INSERT INTO build_ids SELECT id, seq FROM n`)
	require.NoError(t, err)
	builds := decode[[]api.BuildItem](t, b.send("GET", "/api/builds", key(), ""))
	require.Len(t, builds, 410)
	require.Equal(t, []string{"b410", "b1"}, []string{builds[0].ID, builds[409].ID})
	object := decode[api.BuildList](t, b.send("GET", "/api/builds?format=object&limit=400", key(), ""))
	require.Equal(t, 400, object.Total)
	require.Equal(t, builds[:400], object.Builds)
	require.Len(t, decode[api.ActiveBuilds](t, b.send("GET", "/api/builds/active", key(), "")).Builds, 410)
}
