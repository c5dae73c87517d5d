package http_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/api"
)

// holding is a worker with a build of its own.
type holding struct {
	*bundle
	build  api.Submitted
	worker api.Registered
}

// held makes a request of a worker that has just got a build.
func held(do func(h holding) reply, more ...func(t *testing.T) part) func(*bundle) reply {
	return func(b *bundle) reply {
		var parts []part
		for _, m := range more {
			parts = append(parts, m(b.t))
		}
		s, w := b.assigned(parts...)
		return do(holding{b, s, w})
	}
}

// mine is the header of the holder, with more.
func (h holding) mine(more ...string) map[string]string {
	return key(append([]string{"X-Worker-Id", h.worker.ID, "X-Build-Id", h.build.ID}, more...)...)
}

func p12(t *testing.T) part { t.Helper(); return certsZip(t, "c.p12", "x") }

// workerRule is what the routes of a build's holder answer to everybody else.
// method and what stand for the route, body is one that it takes.
func workerRule(method, what, body string, secure bool, certs ...func(*testing.T) part) []answer {
	send := func(id string, header func(h holding) map[string]string) func(*bundle) reply {
		return held(func(h holding) reply {
			head := header(h)
			if body != "" {
				head["Content-Type"] = "application/json"
			}
			return h.send(method, "/api/builds/"+strings.ReplaceAll(id, "ID", h.build.ID)+what, head, body)
		}, certs...)
	}
	as := func(worker string) func(h holding) map[string]string {
		return func(h holding) map[string]string { return h.mine("X-Worker-Id", worker) }
	}
	all := []answer{
		{200, "", send("ID", func(h holding) map[string]string { return h.mine() })},
		{200, "", send("ID", func(h holding) map[string]string { return h.mine("X-Build-Attempt", "1") })},
		{400, "Invalid X-Build-Attempt header", send("ID", func(h holding) map[string]string { return h.mine("X-Build-Attempt", "x") })},
		{401, "Missing X-Worker-Id header", send("ID", func(h holding) map[string]string { return key("X-Build-Id", h.build.ID) })},
		{403, "Unknown worker", send("ID", as("wrong-worker"))},
		{403, "Build not assigned to this worker", send("ID", func(h holding) map[string]string { return h.mine("X-Worker-Id", h.register("other").ID) })},
		{403, "Build not assigned to this worker", func(b *bundle) reply { // nobody's
			s := b.submit()
			h := holding{b, s, b.register("w")}
			head := h.mine("Content-Type", "application/json")
			return b.send(method, "/api/builds/"+s.ID+what, head, body)
		}},
		{404, "Build not found", send("unknown", func(h holding) map[string]string { return h.mine("X-Build-Id", "unknown") })},
		{409, "A newer attempt of this build exists", send("ID", func(h holding) map[string]string {
			h.send("POST", "/api/workers/unregister", key("X-Worker-Token", h.worker.AccessToken), "")
			require.Equal(h.t, h.build.ID, h.poll(h.again(h.t, h.worker.ID).AccessToken).Job.ID)
			return h.mine("X-Build-Attempt", "1")
		})},
	}
	if secure {
		all = append(all, answer{401, "Missing X-Build-Id header", send("ID", func(h holding) map[string]string { return key("X-Worker-Id", h.worker.ID) })},
			answer{403, "X-Build-Id does not match the build", send("ID", func(h holding) map[string]string { return h.mine("X-Build-Id", "other") })})
	}
	return all
}

func holderContract() map[string][]answer {
	const one, beat = `{"level":"info","message":"x"}`, `{"type":"heartbeat","timestamp":"t","data":{}}`
	with := func(what, body string) func(*bundle) reply {
		return held(func(h holding) reply {
			return h.json("POST", "/api/builds/"+h.build.ID+what, h.mine(), body)
		})
	}
	fetch := func(what, remove string, certs ...func(*testing.T) part) func(*bundle) reply {
		return held(func(h holding) reply {
			if remove != "" {
				h.remove("builds/" + h.build.ID + remove)
			}
			return h.send("GET", "/api/builds/"+h.build.ID+what, h.mine(), "")
		}, certs...)
	}
	const shape = "Invalid body. Expected { level, message } or { logs: [...] }"
	beats := func(query, body string) func(*bundle) reply {
		return held(func(h holding) reply {
			query := strings.ReplaceAll(query, "WORKER", h.worker.ID)
			return h.json("POST", "/api/builds/"+h.build.ID+"/heartbeat"+query, key(), body)
		})
	}
	return map[string][]answer{
		"GET /api/builds/:id/source": join(workerRule("GET", "/source", "", false), []answer{
			{404, "Source not found", fetch("/source", "/source.zip")},
		}),
		"GET /api/builds/:id/certs": join(workerRule("GET", "/certs", "", false, p12), []answer{
			{404, "Certs not found", fetch("/certs", "")},
			{404, "Certs not found", fetch("/certs", "/certs.zip", p12)},
		}),
		"GET /api/builds/:id/certs-secure": join(workerRule("GET", "/certs-secure", "", true, p12), []answer{
			{404, "Certs not found", fetch("/certs-secure", "")},
			{404, "Certs not found", fetch("/certs-secure", "/certs.zip", p12)},
			{500, "Failed to process certs file", fetch("/certs-secure", "", func(t *testing.T) part { t.Helper(); return part{"certs", "c", "x"} })},
		}),
		"POST /api/builds/:id/logs": join(workerRule("POST", "/logs", one, false), []answer{
			{200, "", with("/logs", `{"logs":[`+one+`,{"level":"debug","message":"x"}]}`)},
			{400, "Invalid log level. Must be: info, warn, or error", with("/logs", `{"level":"debug","message":"x"}`)},
			{400, shape, with("/logs", `{}`)},
			{400, shape, with("/logs", ``)},
			{400, "Invalid JSON body", with("/logs", `{"level":"info","message":"say "hi""}`)},
			{413, "Request body too large", with("/logs", `{"level":"info","message":"`+strings.Repeat("x", 2000)+`"}`)},
			{415, "Content must be application/json", held(func(h holding) reply {
				return h.send("POST", "/api/builds/"+h.build.ID+"/logs", h.mine("Content-Type", "application/x-www-form-urlencoded"), "level=info")
			})},
		}),
		"POST /api/builds/:id/telemetry": join(workerRule("POST", "/telemetry", beat, true), []answer{
			{400, "Invalid telemetry data", with("/telemetry", `{"type":"heartbeat","data":{}}`)},
			{400, "Invalid telemetry data", with("/telemetry", ``)},
			{400, "Invalid JSON body", with("/telemetry", `{`)},
		}),
		"POST /api/builds/:id/heartbeat": {
			{200, "", beats("?worker_id=WORKER", `{"progress":50}`)},
			{200, "", beats("?worker_id=WORKER", ``)},
			{400, "worker_id required", beats("", ``)},
			{403, "Build not assigned to this worker", beats("?worker_id=other", ``)},
			{404, "Build not found", post("/api/builds/unknown/heartbeat?worker_id=w", "", "X-API-Key", apiKey)},
			{400, "Invalid body: wrong type of progress", beats("?worker_id=WORKER", `{"progress":"half"}`)},
		},
	}
}

func workerContract() map[string][]answer {
	const register = "/api/workers/register"
	polls := func(method string) []answer {
		send := func(query string, header func(w api.Registered) map[string]string) func(*bundle) reply {
			return func(b *bundle) reply {
				w := b.register("w")
				return b.send(method, "/api/workers/poll"+strings.ReplaceAll(query, "ID", w.ID), header(w), "")
			}
		}
		keyed := func(api.Registered) map[string]string { return key() }
		return []answer{
			{200, "", send("", func(w api.Registered) map[string]string { return key("X-Worker-Token", w.AccessToken) })},
			{200, "", send("?worker_id=ID", keyed)},
			{400, "X-Worker-Token header or worker_id required", send("", keyed)},
			{400, "Invalid request: wait must be 0 to 60 seconds", send("?worker_id=ID&wait=61", keyed)},
			{400, "Invalid request: active must be a list of build ids", send("?worker_id=ID&active=a%20b", keyed)},
			{401, "Invalid worker token", send("", func(api.Registered) map[string]string { return key("X-Worker-Token", "unknown") })},
			{404, "Worker not found", send("?worker_id=unknown", keyed)},
		}
	}
	uploads := func(path string) []answer {
		upload := func(build, worker, success string, more ...part) func(*bundle) reply {
			return held(func(h holding) reply {
				fields := strings.NewReplacer("BUILD", h.build.ID, "WORKER", h.worker.ID)
				parts := []part{{name: "build_id", content: fields.Replace(build)}, {name: "worker_id", content: fields.Replace(worker)}, {name: "success", content: success}}
				return h.form(path, key(), append(more, parts...)...) // file first, as the mock worker does
			})
		}
		file := part{"result", "app.ipa", "app"}
		return []answer{
			{200, "", upload("BUILD", "WORKER", "true", file)},
			{200, "", upload("BUILD", "WORKER", "false")},
			{404, "Build not found", upload("unknown", "WORKER", "true", file)},
			{404, "Worker not found", upload("BUILD", "unknown", "true", file)},
			{403, "Build not assigned to this worker", held(func(h holding) reply { return h.finish(h.build.ID, h.register("other").ID, "app") })},
			{409, "Build already finished", held(func(h holding) reply {
				h.send("POST", "/api/builds/"+h.build.ID+"/cancel", key(), "")
				return h.finish(h.build.ID, h.worker.ID, "app")
			})},
		}
	}
	about := func(path, body string) []answer { // fail and heartbeat
		named := held(func(h holding) reply { return h.json("POST", path, key(), strings.ReplaceAll(body, "ID", h.build.ID)) })
		return []answer{
			{200, "", named},
			{400, "Invalid request: build_id required", post(path, `{}`, "X-API-Key", apiKey)},
			{404, "Build not found", post(path, strings.ReplaceAll(body, "ID", "unknown"), "X-API-Key", apiKey)},
			{403, "Build not assigned to a worker", func(b *bundle) reply {
				return b.json("POST", path, key(), strings.ReplaceAll(body, "ID", b.submit().ID))
			}},
		}
	}
	return map[string][]answer{
		"POST " + register: {
			{200, "", post(register, `{"name":"w","capabilities":{}}`, "X-API-Key", apiKey)},
			{200, "", post(register, `{"name":"w","capabilities":{},"id":"mine","publicIdentifier":"x","apiKey":"y"}`, "X-API-Key", apiKey)},
			{422, "Registration failed", post(register, `{"name":"w","capabilities":{},"id":"../w"}`, "X-API-Key", apiKey)},
			{400, "Invalid JSON body", post(register, `{`, "X-API-Key", apiKey)},
		},
		"GET /api/workers/poll":       polls("GET"),
		"POST /api/workers/poll":      polls("POST"),
		"POST /api/workers/upload":    uploads("/api/workers/upload"),
		"POST /api/workers/result":    uploads("/api/workers/result"),
		"POST /api/workers/fail":      about("/api/workers/fail", `{"build_id":"ID","error":"x"}`),
		"POST /api/workers/heartbeat": about("/api/workers/heartbeat", `{"build_id":"ID"}`),
		"POST /api/workers/unregister": {
			{200, "", func(b *bundle) reply {
				return b.send("POST", "/api/workers/unregister", key("X-Worker-Token", b.register("w").AccessToken), "")
			}},
			{401, "Missing X-Worker-Token header", post("/api/workers/unregister", "", "X-API-Key", apiKey)},
			{401, "Invalid worker token", post("/api/workers/unregister", "", "X-API-Key", apiKey, "X-Worker-Token", "bad")},
		},
		"POST /api/workers/:id/unregister": aboutWorker("POST", "/unregister"),
	}
}

// aboutWorker is what routes about one worker answer.
func aboutWorker(method, what string) []answer {
	return []answer{
		{200, "", func(b *bundle) reply { return b.send(method, "/api/workers/"+b.register("w").ID+what, key(), "") }},
		{404, "Worker not found", asking(method, "/api/workers/unknown"+what, "", []string{"X-API-Key", apiKey})},
	}
}

func fleetContract() map[string][]answer {
	report := func(status string) func(*bundle) reply {
		return func(b *bundle) reply { return b.diagnose(b.register("w").ID, status) }
	}
	reports := func(what string) func(*bundle) reply {
		return func(b *bundle) reply {
			w := b.register("w")
			b.diagnose(w.ID, "healthy")
			return b.send("GET", "/api/diagnostics/"+w.ID+what, key(), "")
		}
	}
	const latest = "/api/diagnostics/unknown/latest"
	return map[string][]answer{
		"GET /api/workers": {
			{200, "", get("/api/workers?status=idle&limit=5", "X-API-Key", apiKey)},
			{400, "Invalid status", get("/api/workers?status=tired", "X-API-Key", apiKey)},
			{400, "Invalid request: limit must be a positive whole number", get("/api/workers?limit=x", "X-API-Key", apiKey)},
		},
		"GET /api/workers/:id":         aboutWorker("GET", ""),
		"GET /api/workers/:id/stats":   aboutWorker("GET", "/stats"),
		"POST /api/workers/:id/drain":  aboutWorker("POST", "/drain"),
		"POST /api/workers/:id/resume": aboutWorker("POST", "/resume"),
		"DELETE /api/workers/:id":      join(aboutWorker("DELETE", ""), []answer{{404, "Worker not found", erase("/api/workers/..%2fw")}}),
		"POST /api/diagnostics/report": {
			{200, "", report("critical")},
			{400, "Invalid status. Must be: healthy, warning, or critical", report("sick")},
			{400, "Missing field: worker_id", post("/api/diagnostics/report", `{}`, "X-API-Key", apiKey)},
			{400, "Invalid request: checks must be an array of objects", func(b *bundle) reply {
				return b.json("POST", "/api/diagnostics/report", key(), `{"worker_id":"`+b.register("w").ID+`","status":"healthy","run_at":1,"duration_ms":1,"checks":{}}`)
			}},
			{404, "Worker not found", func(b *bundle) reply { return b.diagnose("unknown", "healthy") }},
		},
		"GET /api/diagnostics/:worker_id": {
			{200, "", reports("?limit=1")},
			{400, "Invalid request: limit must be a positive whole number", reports("?limit=0")},
			{404, "Worker not found", get("/api/diagnostics/unknown", "X-API-Key", apiKey)},
		},
		"GET /api/diagnostics/:worker_id/latest": {
			{200, "", reports("/latest")},
			{404, "No diagnostic reports found", func(b *bundle) reply {
				return b.send("GET", "/api/diagnostics/"+b.register("w").ID+"/latest", key(), "")
			}},
			{404, "Worker not found", get(latest, "X-API-Key", apiKey)},
		},
		"GET /api/events": {{200, "", firstBytes("/api/events")}},
	}
}

// firstBytes begins to read a stream and breaks off.
func firstBytes(path string) func(*bundle) reply {
	return func(b *bundle) reply {
		ctx, cancel := context.WithCancelCause(b.t.Context())
		defer cancel(nil)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, nil)
		require.NoError(b.t, err)
		req.Header.Set("X-API-Key", apiKey)
		resp, err := b.client.Do(req)
		require.NoError(b.t, err)
		require.NoError(b.t, resp.Body.Close())
		return reply{status: resp.StatusCode, header: resp.Header}
	}
}

func publicContract() map[string][]answer {
	open := func(path string) []answer {
		return []answer{{200, "", get(path)}, {200, "", get(path, "X-API-Key", "wrong", "Origin", "https://example.org")}}
	}
	away := func(path string) answer {
		return answer{503, "Database unavailable, try again later", func(b *bundle) reply {
			b.db.Drop(nil)
			defer b.db.Use(b.pool)
			return b.send("GET", path, nil, "")
		}}
	}
	return map[string][]answer{
		"GET /health":       append(open("/health"), away("/health")),
		"GET /api/health":   append(open("/api/health"), away("/api/health")),
		"GET /api/stats":    open("/api/stats"),
		"GET /public/stats": open("/public/stats"),
	}
}
