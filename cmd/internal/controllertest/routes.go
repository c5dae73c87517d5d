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

// ServeHTTP counts the request, passes it to the test's Intercept, and answers it.
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

// Answer answers a request without passing it to an Intercept.
func (c *Controller) Answer(w http.ResponseWriter, r *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", c.health)
	mux.HandleFunc("GET /admin/tree", c.tree)
	for pattern, h := range map[string]http.HandlerFunc{
		"POST /api/workers/register":      c.locked(c.register),
		"POST /api/workers/poll":          c.poll,
		"GET /api/workers/poll":           c.poll,
		"POST /api/workers/unregister":    c.locked(c.unregister),
		"POST /api/workers/upload":        c.locked(c.upload),
		"POST /api/diagnostics/report":    c.locked(c.report),
		"POST /api/builds":                c.locked(c.create),
		"GET /api/builds":                 c.locked(c.list),
		"POST /api/builds/{id}/cancel":    c.locked(c.cancel),
		"GET /api/workers":                c.locked(c.listWorkers),
		"GET /api/workers/{id}":           c.withWorker(func(*Worker) {}),
		"POST /api/workers/{id}/drain":    c.withWorker(func(w *Worker) { w.Draining = true }),
		"POST /api/workers/{id}/resume":   c.withWorker(func(w *Worker) { w.Draining, w.Quarantine, w.Suspect = false, nil, nil }),
		"DELETE /api/workers/{id}":        c.locked(c.deleteWorker),
		"GET /api/builds/{id}/source":     c.source,
		"GET /api/builds/{id}/certs":      c.certs,
		"GET /api/builds/{id}/inputs":     c.locked(c.inputs),
		"POST /api/builds/{id}/logs":      c.locked(c.postLogs),
		"POST /api/builds/{id}/heartbeat": c.locked(c.heartbeat),
		"POST /api/builds/{id}/telemetry": c.locked(c.telemetry),
	} {
		mux.HandleFunc(pattern, withKey(h))
	}
	mux.HandleFunc("GET /api/builds/{id}/status", c.withBuild(c.status))
	mux.HandleFunc("GET /api/builds/{id}/why", c.withBuild(c.why))
	mux.HandleFunc("GET /api/builds/{id}/logs", c.withBuild(c.logs))
	mux.HandleFunc("GET /api/builds/{id}/download", c.withBuild(c.download))
	mux.HandleFunc("POST /api/builds/{id}/retry", c.withBuild(c.retry))
	mux.ServeHTTP(w, r)
}

// locked calls h with the lock held, answers with the status and body that h returns, and
// wakes all waiting goroutines.
func (c *Controller) locked(h func(w http.ResponseWriter, r *http.Request) (status int, body any)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		status, body := h(w, r)
		c.touch()
		JSON(w, status, body)
	}
}

func withKey(h http.HandlerFunc) http.HandlerFunc {
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

// withBuild gives h a copy of the build. It also accepts the build's token.
func (c *Controller) withBuild(h func(w http.ResponseWriter, r *http.Request, b Build)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		b := c.Build(r.PathValue("id"))
		token := r.Header.Get(api.HeaderBuildToken)
		allowed := r.Header.Get(api.HeaderAPIKey) == APIKey || token != "" && token == b.Token
		switch {
		case allowed && b.ID != "":
			h(w, r, b)
		case allowed:
			Problem(w, http.StatusNotFound, store.NotFound, "Build not found")
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
	JSON(w, status, problem(status, code, message))
}

func problem(status int, code store.Code, message string) api.Problem {
	return api.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: message, Error: message, Code: string(code),
	}
}

// refuse returns an error reply for [Controller.locked].
func refuse(status int, code store.Code, message string) (int, any) {
	return status, problem(status, code, message)
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

// serveFile answers with ranges, ETag and digest, like the real controller.
func serveFile(w http.ResponseWriter, r *http.Request, kind string, content []byte) {
	sum := sha256.Sum256(content)
	digest := base64.StdEncoding.EncodeToString(sum[:])
	w.Header().Set("Content-Type", kind)
	w.Header().Set("ETag", strconv.Quote(digest))
	w.Header().Set("Repr-Digest", "sha-256=:"+digest+":")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}
