package http_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
)

// cast is who might come to a worker's route, and with which build.
type cast struct {
	b *fixture
	// held is held by holder, in its second attempt: before, it was before's.
	held           api.Submitted
	holder, before api.Registered
	// idle holds nothing, gone has unregistered.
	idle, gone api.Registered
	// waiting is nobody's, finished was idle's, cancelled the holder's.
	waiting, finished, cancelled api.Submitted
}

func newCast(t *testing.T, change ...func(*takthttp.Config)) *cast {
	t.Helper()
	b := setup(t, change...)
	c := &cast{b: b}
	certs := part{"certs", "c.zip", "precious"}
	c.held, c.before = b.assigned(certs)
	require.Equal(t, 200, b.send("POST", "/api/workers/unregister", key("X-Worker-Token", c.before.AccessToken), "").status)
	c.holder = b.register("holder")
	require.Equal(t, 2, b.poll(c.holder.AccessToken).Job.Attempt)
	c.before = b.again(t, c.before.ID)

	c.finished, c.idle = b.assigned(certs)
	require.Equal(t, 200, b.finish(c.finished.ID, c.idle.ID, "app").status)
	c.cancelled, c.gone = b.assigned(certs)
	require.Equal(t, 200, b.send("POST", "/api/builds/"+c.cancelled.ID+"/cancel", key(), "").status)
	require.Equal(t, 200, b.send("POST", "/api/workers/"+c.gone.ID+"/unregister", key(), "").status)
	c.waiting = b.submit(certs)
	return c
}

// again registers a known worker again.
func (b *fixture) again(t *testing.T, id string) api.Registered {
	t.Helper()
	r := b.json("POST", "/api/workers/register", key(), `{"id":"`+id+`","name":"w","capabilities":{}}`)
	require.Equal(t, 200, r.status, r.body)
	return decode[api.Registered](t, r)
}

// act is something that only a build's holder may do. Its header has the right
// API key; who it is and which build is meant are still to be said.
type act struct {
	name string
	do   func(b *fixture, build, worker string, header map[string]string) reply
	// anonymous ones may leave out who they are: old clients do.
	anonymous bool
}

func acts() []act {
	route := func(method, path, body string) act {
		return act{name: method + " " + path, do: func(b *fixture, build, worker string, header map[string]string) reply {
			if worker != "" {
				header["X-Worker-Id"] = worker
			}
			header["X-Build-Id"] = build
			if body != "" {
				header["Content-Type"] = "application/json"
			}
			return b.send(method, "/api/builds/"+build+path, header, body)
		}}
	}
	upload := func(path, success string) act {
		return act{name: path + " " + success, do: func(b *fixture, build, worker string, header map[string]string) reply {
			parts := []part{{name: "build_id", content: build}, {name: "worker_id", content: worker}, {name: "success", content: success}}
			if success == "true" {
				parts = append(parts, part{"result", "r", "stolen"})
			}
			return b.form(path, header, parts...)
		}}
	}
	alias := func(path string) act {
		return act{name: path, anonymous: true, do: func(b *fixture, build, worker string, header map[string]string) reply {
			header["Content-Type"] = "application/json"
			if worker != "" {
				header["X-Worker-Id"] = worker
			}
			return b.send("POST", path, header, `{"build_id":"`+build+`","error":"forged"}`)
		}}
	}
	return []act{
		alias("/api/workers/fail"), alias("/api/workers/heartbeat"),
		route("GET", "/certs-secure", ""), route("GET", "/inputs", ""),
		route("POST", "/telemetry", `{"type":"monitor_started","timestamp":"2026-01-01T00:00:00Z","data":{}}`),
		route("GET", "/source", ""), route("HEAD", "/source", ""), route("GET", "/certs", ""), route("HEAD", "/certs", ""),
		route("GET", "/certs-secure", ""), route("POST", "/telemetry", `{"type":"heartbeat","timestamp":"t","data":{"stage":"forged"}}`),
		route("POST", "/logs", `{"level":"info","message":"forged"}`),
		route("POST", "/logs", `{"logs":[{"level":"info","message":"forged"}]}`),
		{name: "POST /heartbeat", do: func(b *fixture, build, worker string, header map[string]string) reply {
			header["Content-Type"] = "application/json"
			return b.send("POST", "/api/builds/"+build+"/heartbeat?worker_id="+worker, header, `{"progress":50}`)
		}},
		upload("/api/workers/upload", "true"), upload("/api/workers/upload", "false"),
		upload("/api/workers/result", "true"), upload("/api/workers/result", "false"),
	}
}

func TestHoldersAloneMayAct(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	before := filesAround(t, c.b)
	rows := c.rows(t)
	for _, a := range acts() {
		for who, tt := range map[string]struct {
			build, worker string
			header        map[string]string
			want          []int
		}{
			"nobody, without a key":             {c.held.ID, c.holder.ID, map[string]string{}, []int{401}},
			"the holder, with a wrong key":      {c.held.ID, c.holder.ID, map[string]string{"X-API-Key": "wrong-key-0123456789"}, []int{403}},
			"the holder, with the admin key":    {c.held.ID, c.holder.ID, map[string]string{"X-Admin-Key": adminKey}, []int{401}},
			"the build's submitter":             {c.held.ID, c.holder.ID, map[string]string{"X-Build-Token": c.held.AccessToken}, []int{401}},
			"another build's submitter":         {c.held.ID, c.holder.ID, map[string]string{"X-Build-Token": c.waiting.AccessToken}, []int{401}},
			"a worker's token instead of a key": {c.held.ID, c.holder.ID, map[string]string{"X-Worker-Token": c.holder.AccessToken}, []int{401}},
			"no worker":                         {c.held.ID, "", key(), []int{400, 401}},
			"an unknown worker":                 {c.held.ID, "wrong-worker", key(), []int{403, 404}},
			"an idle worker":                    {c.held.ID, c.idle.ID, key(), []int{403}},
			"a worker that has left":            {c.held.ID, c.gone.ID, key(), []int{403}},
			"who held it before":                {c.held.ID, c.before.ID, key(), []int{403}},
			"who held it before, and says so":   {c.held.ID, c.before.ID, key("X-Build-Attempt", "1"), []int{403, 409}},
			"the holder, of an older attempt":   {c.held.ID, c.holder.ID, key("X-Build-Attempt", "1"), []int{409}},
			"the holder, of another's build":    {c.finished.ID, c.holder.ID, key(), []int{403, 409}},
			"the holder, of an unknown build":   {"unknown", c.holder.ID, key(), []int{404}},
			"a worker of its cancelled build":   {c.cancelled.ID, c.idle.ID, key(), []int{403, 409}},
		} {
			if a.anonymous && tt.worker == "" {
				continue
			}
			r := a.do(c.b, tt.build, tt.worker, maps.Clone(tt.header))
			if strings.HasSuffix(a.name, "/heartbeat") && strings.HasPrefix(who, "who held it") && r.status == 200 {
				require.Contains(t, r.body, `"cancelled":true`, "it is told to stop")
				continue
			}
			require.Contains(t, tt.want, r.status, "%s by %s: %s", a.name, who, r.body)
			require.NotContains(t, r.body, "precious")
		}
	}
	require.Equal(t, before, filesAround(t, c.b), "no file was made, changed or removed")
	require.Equal(t, rows, c.rows(t), "and no row")
}

// Files of a build that is over are nobody's, even its former holder's.
func TestFilesAreNobodysWhenTheBuildIsOver(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	for _, name := range []string{"source", "certs"} {
		for what, r := range map[string]reply{
			"finished":  c.b.send("GET", "/api/builds/"+c.finished.ID+"/"+name, key("X-Worker-Id", c.idle.ID), ""),
			"cancelled": c.b.send("GET", "/api/builds/"+c.cancelled.ID+"/"+name, key("X-Worker-Id", c.gone.ID), ""),
			"waiting":   c.b.send("GET", "/api/builds/"+c.waiting.ID+"/"+name, key("X-Worker-Id", c.idle.ID), ""),
		} {
			require.Equal(t, 403, r.status, "%s of a %s build: %s", name, what, r.body)
		}
		require.Equal(t, 200, c.b.send("GET", "/api/builds/"+c.held.ID+"/"+name, key("X-Worker-Id", c.holder.ID), "").status)
	}
}

// Certificates have one way out.
func TestCertificatesAreForTheHolderOnly(t *testing.T) {
	t.Parallel()
	c := newCast(t)
	parameter := regexp.MustCompile(`:[a-z_]+`)
	for _, route := range registered(t) {
		method, path, _ := strings.Cut(route, " ")
		if method != "GET" || !strings.HasPrefix(path, "/api/builds/:id/") || strings.HasSuffix(path, "/certs-secure") {
			continue
		}
		for _, kind := range []string{"certs", "certs.zip", "result", "source"} {
			target := parameter.ReplaceAllString(strings.Replace(path, ":id", c.held.ID, 1), kind)
			for _, header := range []map[string]string{
				key(), key("X-Worker-Id", c.idle.ID), {"X-Build-Token": c.held.AccessToken}, key("X-Build-Token", c.held.AccessToken),
			} {
				require.NotContains(t, c.b.send("GET", target, header, "").body, "precious", target)
			}
		}
	}
	r := c.b.send("GET", "/api/builds/"+c.held.ID+"/certs", key("X-Worker-Id", c.holder.ID), "")
	require.Equal(t, "precious", r.body)
	for name := range filesAround(t, c.b) {
		if info, err := os.Stat(filepath.Join(filepath.Dir(c.b.dir), name)); err == nil && info.Mode().IsRegular() {
			raw, err := os.ReadFile(filepath.Join(filepath.Dir(c.b.dir), name))
			require.NoError(t, err)
			require.NotContains(t, string(raw), "precious", name)
		}
	}
}

// rows is what is known of builds, workers and logs, without times of presence.
func (c *cast) rows(t *testing.T) string {
	t.Helper()
	var all string
	require.NoError(t, c.b.pool.QueryRow(t.Context(), `
SELECT concat_ws(E'\n',
  (SELECT string_agg(concat_ws('|', id, state, attempt, worker_id, error_message, completed_at), E'\n' ORDER BY id) FROM builds),
  (SELECT string_agg(concat_ws('|', build, message), E'\n' ORDER BY seq) FROM build_logs),
  (SELECT string_agg(concat_ws('|', id, completed, failed), E'\n' ORDER BY id) FROM workers))`).Scan(&all))
	return all
}
