package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
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

func TestAuditHasWhatAKeyChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w, gone := b.register("w"), b.register("gone")
	do := func(status int, method, path, body string) {
		require.Equal(t, status, b.json(method, path, key(), body).status, path)
	}
	do(200, "POST", "/api/workers/"+w.ID+"/drain", `{"reason":"a new disk"}`)
	do(200, "POST", "/api/workers/"+w.ID+"/resume", "")
	do(404, "DELETE", "/api/workers/nobody", "")
	do(200, "DELETE", "/api/workers/"+gone.ID+"?reason=sold", "")
	do(200, "POST", "/api/config", `{"portal_id":1,"action_id":2,"max_throughput":3,"time_period":4,"time_unit":"seconds","reason":"slow CRM"}`)
	do(400, "POST", "/api/config", `{"portal_id":1,"action_id":2,"max_throughput":3,"time_period":4,"time_unit":"seconds","reason":1}`)
	do(204, "DELETE", "/api/config/1/2", "")
	s := b.submit()
	do(200, "PATCH", "/api/builds/"+s.ID, `{"priority":3,"reason":"a release"}`)
	do(200, "POST", "/api/builds/"+s.ID+"/cancel?reason=a+typo", "")
	do(400, "POST", "/api/builds/"+s.ID+"/cancel", "")
	token := map[string]string{"X-Build-Token": s.AccessToken}
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/retry", token, "").status)
	r := b.send("GET", "/admin/audit", map[string]string{"X-Admin-Key": adminKey}, "")
	require.Equal(t, 200, r.status, r.body)
	var got []string
	for _, e := range decode[api.Audit](t, r).Entries {
		actor, _, _ := strings.Cut(e.Actor, "@")
		got = append(got, actor+" "+e.Action+" "+e.Target+" ("+e.Reason+"): "+*e.Outcome)
	}
	require.Equal(t, []string{
		"build token retry build/" + s.ID + " (): done",
		"api cancel build/" + s.ID + " (): Build already finished", "api cancel build/" + s.ID + " (a typo): done",
		"api priority build/" + s.ID + " (a release): done",
		"api delete rate 1/2 (): done", "api set rate 1/2 (slow CRM): done",
		"api delete worker/" + gone.ID + " (sold): done",
		"api resume worker/" + w.ID + " (): done", "api drain worker/" + w.ID + " (a new disk): done",
	}, got)
	require.Contains(t, r.body, `"name":"gone"`)
}
