package http_test

import (
	"strings"

	"takt/http/api"
)

func submitContract() map[string][]answer {
	all := map[string][]answer{}
	for path, ok := range map[string]int{"/api/builds": 201, "/api/builds/submit": 200} {
		form := func(parts ...part) func(*bundle) reply {
			return func(b *bundle) reply { return b.form(path, key(), parts...) }
		}
		big := func(n int) string { return strings.Repeat("x", n) }
		all["POST "+path] = join([]answer{
			{ok, "", form(source("s"), ios())},
			{ok, "", form(source("s"), part{"profile", "p", "x"}, part{name: "appleId", content: "a"}, part{name: "applePassword", content: "b"}, ios())},
			{ok, "", form(source(big(1000)), part{"certs", "c", big(500)}, ios())},
			{400, "Content must be multipart/form-data", post(path, `{"platform":"ios"}`, "X-API-Key", apiKey)},
		}, []answer{
			{503, "Build queue full, try again later", func(b *bundle) reply {
				return fill(b, func() reply { return b.form(path, key(), source("s"), ios()) })
			}},
		})
	}
	return all
}

// of makes a request about a build that is submitted for it; ID in the path and
// TOKEN in a header stand for its own.
func of(do func(path string, header ...string) func(*bundle) reply, path string, header ...string) func(*bundle) reply {
	return func(b *bundle) reply {
		s := b.submit()
		mine := make([]string, len(header))
		for i, h := range header {
			mine[i] = strings.ReplaceAll(h, "TOKEN", s.AccessToken)
		}
		return do(strings.ReplaceAll(path, "ID", s.ID), mine...)(b)
	}
}

func patch(body string) func(path string, header ...string) func(*bundle) reply {
	return func(path string, _ ...string) func(*bundle) reply {
		return func(b *bundle) reply { return b.json("PATCH", path, key(), body) }
	}
}

func posted(path string, header ...string) func(*bundle) reply { return post(path, "", header...) }

// completed is a request about a build that has completed.
func completed(path string, change func(b *bundle, s api.Submitted)) func(*bundle) reply {
	return func(b *bundle) reply {
		s := b.submit()
		if r := b.finish(s.ID, b.register("w").ID, "app"); r.status != 200 {
			return r
		}
		if change != nil {
			change(b, s)
		}
		return b.send("GET", strings.ReplaceAll(path, "ID", s.ID), key(), "")
	}
}

func readContract() map[string][]answer {
	lists := func(path string) []answer {
		return []answer{{200, "", get(path, "X-API-Key", apiKey)}}
	}
	either := func(path string) []answer {
		return []answer{
			{200, "", of(get, path, "X-API-Key", apiKey)},
			{200, "", of(get, path, "X-Build-Token", "TOKEN")},
			{403, "Invalid or expired build token", of(get, path, "X-Build-Token", "TOKENx")},
			{403, "Invalid or expired build token", of(get, path, "X-API-Key", "wrong", "X-Build-Token", "wrong")},
		}
	}
	downloads := func(path string) []answer {
		return join([]answer{
			{200, "", completed(path, nil)},
			{400, "Build not completed", of(get, path, "X-API-Key", apiKey)},
			{404, "Build result not found", completed(path, func(b *bundle, s api.Submitted) { b.remove("builds/" + s.ID + "/result.ipa") })},
			{403, "Invalid or expired build token", of(get, path, "X-Build-Token", "wrong")},
		}, tokenless("GET", strings.ReplaceAll(path, "ID", "unknown")))
	}
	return map[string][]answer{
		"GET /api/builds": join(lists("/api/builds"), lists("/api/builds/"), []answer{
			{200, "", get("/api/builds?status=failed&platform=ios&worker_id=w&limit=5&format=object", "X-API-Key", apiKey)},
			{400, "Invalid status", get("/api/builds?status=done", "X-API-Key", apiKey)},
			{400, "Valid platform required (ios|android)", get("/api/builds?platform=windows", "X-API-Key", apiKey)},
			{400, "Invalid worker_id", get("/api/builds?worker_id=a%20b", "X-API-Key", apiKey)},
			{400, "Invalid request: limit must be a positive whole number", get("/api/builds?limit=0", "X-API-Key", apiKey)},
		}),
		"GET /api/builds/active":     lists("/api/builds/active"),
		"GET /api/builds/statistics": lists("/api/builds/statistics"),
		"GET /api/builds/:id": {
			{200, "", of(get, "/api/builds/ID", "X-API-Key", apiKey)},
			{404, "Build not found", get("/api/builds/unknown", "X-API-Key", apiKey)},
			{401, "Missing X-API-Key header", of(get, "/api/builds/ID", "X-Build-Token", "TOKEN")},
		},
		"GET /api/builds/:id/status": join(either("/api/builds/ID/status"), tokenless("GET", "/api/builds/unknown/status")),
		"GET /api/builds/:id/logs": join(either("/api/builds/ID/logs"), tokenless("GET", "/api/builds/unknown/logs"), []answer{
			{400, "Invalid request: after must be a whole number", of(get, "/api/builds/ID/logs?after=x", "X-API-Key", apiKey)},
			{400, "Invalid request: limit must be a positive whole number", of(get, "/api/builds/ID/logs?limit=0", "X-API-Key", apiKey)},
		}),
		"GET /api/builds/:id/download": downloads("/api/builds/ID/download"),
		"GET /api/builds/:id/download/:type": join(downloads("/api/builds/ID/download/result"), []answer{
			{200, "", of(get, "/api/builds/ID/download/source", "X-Build-Token", "TOKEN")},
			{400, "Invalid file type", of(get, "/api/builds/ID/download/certs", "X-API-Key", apiKey)},
			{404, "Source not found", completed("/api/builds/ID/download/source", func(b *bundle, s api.Submitted) { b.remove("builds/" + s.ID + "/source.zip") })},
		}),
		"PATCH /api/builds/:id": {
			{200, "", of(patch(`{"priority":-10}`), "/api/builds/ID")},
			{400, "Invalid request: priority required", of(patch(`{}`), "/api/builds/ID")},
			{400, "Invalid request: priority must be -10 to 10", of(patch(`{"priority":11}`), "/api/builds/ID")},
			{409, "Build is not pending", func(b *bundle) reply {
				s := b.submit()
				b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "")
				return patch(`{"priority":1}`)("/api/builds/" + s.ID)(b)
			}},
			{404, "Build not found", patch(`{"priority":1}`)("/api/builds/unknown")},
		},
		"POST /api/builds/:id/cancel": {
			{200, "", of(posted, "/api/builds/ID/cancel", "X-API-Key", apiKey)},
			{400, "Build already finished", func(b *bundle) reply {
				s := b.submit()
				b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "")
				return b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "")
			}},
			{404, "Build not found", post("/api/builds/unknown/cancel", "", "X-API-Key", apiKey)},
		},
		"POST /api/builds/:id/requeue": {
			{200, "", func(b *bundle) reply {
				s, _ := b.assigned()
				return requeue(s.ID, `{"reason":"stuck"}`, adminKey)(b)
			}},
			{400, "Invalid request: reason is required", requeue("unknown", `{}`, adminKey)},
			{401, "Missing X-Admin-Key header", requeue("unknown", `{"reason":"stuck"}`, "")},
			{403, "Invalid admin key", requeue("unknown", `{"reason":"stuck"}`, apiKey)},
			{404, "Build not found", requeue("unknown", `{"reason":"stuck"}`, adminKey)},
			{409, "No worker holds the build, its state is pending", func(b *bundle) reply {
				return requeue(b.submit().ID, `{"reason":"stuck"}`, adminKey)(b)
			}},
		},
		"POST /api/builds/:id/retry": join([]answer{
			{200, "", of(posted, "/api/builds/ID/retry", "X-API-Key", apiKey)},
			{200, "", of(posted, "/api/builds/ID/retry", "X-Build-Token", "TOKEN")},
			{403, "Invalid or expired build token", of(posted, "/api/builds/ID/retry", "X-Build-Token", "wrong")},
			{400, "Original build source no longer available. Please submit a new build.", func(b *bundle) reply {
				s := b.submit()
				b.remove("builds/" + s.ID + "/source.zip")
				return b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "")
			}},
		}, tokenless("POST", "/api/builds/unknown/retry"), []answer{
			{503, "Build queue full, try again later", func(b *bundle) reply {
				s := b.submit()
				return fill(b, func() reply { return b.send("POST", "/api/builds/"+s.ID+"/retry", key(), "") })
			}},
		}),
	}
}

// requeue is an operator's request to take a build from its worker.
func requeue(id, body, admin string) func(*bundle) reply {
	header := []string{"X-API-Key", apiKey}
	if admin != "" {
		header = append(header, "X-Admin-Key", admin)
	}
	return post("/api/builds/"+id+"/requeue", body, header...)
}
