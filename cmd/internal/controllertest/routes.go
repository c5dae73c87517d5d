package controllertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"takt/http/api"
	"takt/store"
)

// ServeHTTP counts, lets the test interfere, and answers.
func (c *Controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.requests[r.Method+" "+r.URL.Path]++
	intercept := c.intercept
	c.touch()
	c.mu.Unlock()
	if intercept == nil || !intercept(w, r) {
		c.Answer(w, r)
	}
}

// Answer does what a request asks for, whatever intercepts say.
func (c *Controller) Answer(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", c.health)
	mux.HandleFunc("GET /admin/tree", c.tree)
	keyed := map[string]http.HandlerFunc{
		"POST /api/workers/register":      c.register,
		"POST /api/workers/poll":          c.poll,
		"POST /api/workers/unregister":    c.unregister,
		"POST /api/workers/upload":        c.upload,
		"POST /api/builds":                c.create,
		"GET /api/builds":                 c.list,
		"POST /api/builds/{id}/cancel":    c.cancel,
		"GET /api/workers":                c.listWorkers,
		"GET /api/workers/{id}":           c.withWorker(nil),
		"POST /api/workers/{id}/drain":    c.withWorker(func(w *Worker) { w.Draining = true }),
		"POST /api/workers/{id}/resume":   c.withWorker(func(w *Worker) { w.Draining = false }),
		"DELETE /api/workers/{id}":        c.deleteWorker,
		"GET /api/builds/{id}/source":     c.source,
		"GET /api/builds/{id}/certs":      c.certs,
		"POST /api/builds/{id}/logs":      c.postLogs,
		"POST /api/builds/{id}/heartbeat": c.heartbeat,
	}
	for pattern, h := range keyed {
		mux.HandleFunc(pattern, c.withKey(h))
	}
	mux.HandleFunc("GET /api/builds/{id}/status", c.withBuild(c.status))
	mux.HandleFunc("GET /api/builds/{id}/logs", c.withBuild(c.logs))
	mux.HandleFunc("GET /api/builds/{id}/download", c.withBuild(c.download))
	mux.HandleFunc("POST /api/builds/{id}/retry", c.withBuild(c.retry))
	mux.ServeHTTP(w, r)
}

func (c *Controller) withKey(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get(api.HeaderAPIKey) {
		case APIKey:
			h(w, r)
		case "":
			Problem(w, http.StatusUnauthorized, store.Unauthorized, "Missing X-API-Key header")
		default:
			Problem(w, http.StatusForbidden, store.InvalidAPIKey, "Invalid API key")
		}
	}
}

// withBuild lets the build's token in too.
func (c *Controller) withBuild(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := c.Build(r.PathValue("id"))
		token := r.Header.Get(api.HeaderBuildToken)
		switch {
		case r.Header.Get(api.HeaderAPIKey) == APIKey || token != "" && token == b.Token:
			if b.ID == "" {
				Problem(w, http.StatusNotFound, store.NotFound, "Build not found")
				return
			}
			h(w, r)
		case token != "":
			Problem(w, http.StatusForbidden, store.Forbidden, "Invalid or expired build token")
		default:
			Problem(w, http.StatusUnauthorized, store.Unauthorized, "Missing X-API-Key or X-Build-Token header")
		}
	}
}

// JSON writes a reply.
func JSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// Problem writes an error reply.
func Problem(w http.ResponseWriter, status int, code store.Code, message string) {
	if status == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "0")
	}
	JSON(w, status, api.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Detail: message, Error: message, Code: string(code),
	})
}

func (c *Controller) health(w http.ResponseWriter, _ *http.Request) {
	JSON(w, http.StatusOK, api.Health{Status: "ok", Storage: map[string]any{}})
}

func (c *Controller) tree(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(api.HeaderAdminKey) != AdminKey {
		Problem(w, http.StatusForbidden, store.Forbidden, "Invalid admin key")
		return
	}
	when := api.Millis(time.Date(2025, 11, 24, 16, 0, 0, 0, time.UTC).UnixMilli())
	JSON(w, http.StatusOK, api.TreeNode{
		ID: "takt", Path: "takt", Type: "supervisor", Strategy: "one_for_one", Status: "running", UptimeMS: 3_600_000,
		Children: []api.TreeNode{
			{ID: "database", Path: "takt/database", Type: "supervisor", Strategy: "rest_for_one", Status: "running", UptimeMS: 61_000, Children: []api.TreeNode{
				{ID: "pool", Path: "takt/database/pool", Type: "worker", Status: "suspended", Detail: "connection refused", Restarts: 2, LastExit: "panic: boom", LastExitAt: &when, UptimeMS: 500, Mailbox: 3},
			}},
			{ID: "request_sup", Path: "takt/request_sup", Type: "supervisor", Strategy: "dynamic", Status: "running", UptimeMS: 3_600_000, ChildCount: 12, Leaked: 1},
		},
	})
}

// serveFile answers with ranges, ETag and digest, as the controller does.
func serveFile(w http.ResponseWriter, r *http.Request, kind string, content []byte) {
	sum := sha256.Sum256(content)
	digest := base64.StdEncoding.EncodeToString(sum[:])
	w.Header().Set("Content-Type", kind)
	w.Header().Set("ETag", strconv.Quote(digest))
	w.Header().Set("Repr-Digest", "sha-256=:"+digest+":")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
