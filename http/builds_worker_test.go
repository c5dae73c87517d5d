package http_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
)

func TestSourceMarksTheBuildAsBuilding(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	path := "/api/builds/" + s.ID + "/source"
	require.Equal(t, 200, b.send("HEAD", path, key("X-Worker-Id", w.ID), "").status)
	require.Equal(t, "assigned", b.status(s.ID).Status, "a look is no work")
	r := b.send("GET", path, key("X-Worker-Id", w.ID), "")
	require.Equal(t, 200, r.status)
	require.Equal(t, "source code", r.body)
	require.Equal(t, []string{"application/zip"}, r.header["Content-Type"], "exactly")
	require.Equal(t, `attachment; filename="`+s.ID+`.zip"`, r.header.Get("Content-Disposition"))
	require.Equal(t, "building", b.status(s.ID).Status)
}

func TestCertsComeBackToTheirHolder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned(part{"certs", "c.zip", strings.Repeat("secret", 50_000)})
	r := b.send("GET", "/api/builds/"+s.ID+"/certs", key("X-Worker-Id", w.ID), "")
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, strings.Repeat("secret", 50_000), r.body)
	require.Equal(t, []string{"application/zip"}, r.header["Content-Type"])
	require.Equal(t, `attachment; filename="`+s.ID+`-certs.zip"`, r.header.Get("Content-Disposition"))
	part := b.send("GET", "/api/builds/"+s.ID+"/certs", key("X-Worker-Id", w.ID, "Range", "bytes=70000-70005"), "")
	require.Equal(t, 206, part.status)
	require.Equal(t, r.body[70000:70006], part.body)

	s, w = b.assigned()
	r = b.send("GET", "/api/builds/"+s.ID+"/certs", key("X-Worker-Id", w.ID), "")
	require.Equal(t, 404, r.status)
	requireProblem(t, r, "Certs not found", "not_found")
}

func TestPostLogs(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *takthttp.Config) { c.MaxJSON = 2000 })
	s, w := b.assigned()
	path := "/api/builds/" + s.ID + "/logs"
	const shape = "Invalid body. Expected { level, message } or { logs: [...] }"
	for name, tt := range map[string]struct {
		body, reply, text string
		status            int
	}{
		"one": {`{"level":"error","message":"say \"hi\" <&> ü"}`, `{"success":true}`, "", 200},
		"a line that claims to be takt's": {
			`{"level":"info","message":"Assigned to worker x","kind":"assigned","worker":"x","attempt":7,"facts":{"reason":"silent"},"number":1}`,
			`{"success":true}`, "", 200,
		},
		"a batch of such lines": {
			`{"logs":[{"level":"info","message":"a","kind":"assigned","worker":"x","facts":{}}],"kind":"assigned","facts":{}}`,
			`{"success":true,"count":1}`, "", 200,
		},
		"a batch":                   {`{"logs":[{"level":"info","message":"a"},{"level":"warn","message":"b"}]}`, `{"success":true,"count":2}`, "", 200},
		"a batch with bad entries":  {`{"logs":[{"level":"debug","message":"a"},{"level":"info","message":"kept"},7,{"level":"info"}]}`, `{"success":true,"count":1}`, "", 200},
		"an empty batch":            {`{"logs":[]}`, `{"success":true,"count":0}`, "", 200},
		"NUL":                       {`{"level":"info","message":"a\u0000b"}`, `{"success":true}`, "", 200},
		"half a surrogate":          {`{"level":"info","message":"a\ud800b"}`, `{"success":true}`, "", 200},
		"an unknown level":          {`{"level":"debug","message":"a"}`, "", "Invalid log level. Must be: info, warn, or error", 400},
		"no message":                {`{"level":"info"}`, "", shape, 400},
		"nothing":                   {``, "", shape, 400},
		"an empty object":           {`{}`, "", shape, 400},
		"null":                      {`null`, "", shape, 400},
		"a message that is a list":  {`{"level":"info","message":[]}`, "", "Invalid body: wrong type of message", 400},
		"an array":                  {`[]`, "", "Invalid JSON body", 400},
		"pasted quotes":             {`{"level":"info","message":"say "hi""}`, "", "Invalid JSON body", 400},
		"pasted backslash":          {`{"level":"info","message":"C:\dir"}`, "", "Invalid JSON body", 400},
		"two values":                {`{"level":"info","message":"a"}{}`, "", "Invalid JSON body", 400},
		"more than the limit":       {`{"level":"info","message":"` + strings.Repeat("x", 2000) + `"}`, "", "Request body too large", 413},
		"deep nesting of something": {`{"logs":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`, `{"success":true,"count":0}`, "", 200},
	} {
		r := b.json("POST", path, key("X-Worker-Id", w.ID), tt.body)
		require.Equal(t, tt.status, r.status, "%s: %s", name, r.body)
		if tt.status == 200 {
			require.Equal(t, tt.reply, r.body, name)
		} else {
			require.Equal(t, tt.text, decode[api.Problem](t, r).Error, name)
		}
	}
	for _, kind := range []string{"application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/plain"} {
		r := b.send("POST", path, key("X-Worker-Id", w.ID, "Content-Type", kind), `level=info`)
		require.Equal(t, 415, r.status)
		requireProblem(t, r, "Content must be application/json", "unsupported_media_type")
	}
	var claimed int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM build_logs WHERE by_worker AND (kind, worker, attempt, facts) IS DISTINCT FROM (NULL, NULL, NULL, NULL)`).Scan(&claimed))
	require.Zero(t, claimed, "a worker writes text only")
	m := b.messages(s.ID)
	require.Contains(t, m, "Assigned to worker x")
	require.Contains(t, m, `say "hi" <&> ü`)
	require.Contains(t, m, "kept")
	require.Contains(t, m, "a\uFFFDb")
	require.Equal(t, "building", b.status(s.ID).Status)
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	path := "/api/builds/" + s.ID + "/heartbeat"
	r := b.json("POST", path+"?worker_id="+w.ID, key(), `{"progress":42.5}`)
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "heartbeat_reply", r)
	require.Contains(t, r.body, `"cancelled":false`)
	require.Contains(t, b.messages(s.ID), "Build progress: 42.5%")
	require.Equal(t, "building", b.status(s.ID).Status)
	for _, body := range []string{"", "{}", `{"progress":null}`, `{"progress":1e300}`, `{"progress":-1}`} {
		require.Equal(t, 200, b.json("POST", path+"?worker_id="+w.ID, key(), body).status, body)
	}
	require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	r = b.json("POST", path+"?worker_id="+w.ID, key(), "")
	require.Equal(t, 200, r.status, r.body)
	require.Contains(t, r.body, `"cancelled":true`)
}

// A worker that is told that there are no certificates, or that they are gone, has
// not begun: its build may be handed out again.
func TestBuildsBeginWithNoFileThatIsNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	header := key("X-Worker-Id", w.ID, "X-Build-Id", s.ID)
	b.remove("builds/" + s.ID)
	for _, path := range []string{"certs", "certs-secure", "source"} {
		require.Equal(t, 404, b.send("GET", "/api/builds/"+s.ID+"/"+path, header, "").status, path)
		require.Equal(t, "assigned", b.status(s.ID).Status, path)
	}
}
