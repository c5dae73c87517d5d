package http_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// Old clients look for the first error of a request that has several.
func TestErrorsOfOneRequestAreToldInOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const id, wrong = "/api/builds/a%2eb%2f", `{"progress":"half","build_id":7}`
	bad := key("X-Worker-Id", "a b", "X-Build-Attempt", "x", "X-Worker-Instance", "a b")
	for _, c := range []struct {
		method, path, body string
		header             map[string]string
		status             int
		text               string
	}{
		{"GET", id + "/download/other", "", bad, 400, "Invalid file type"},
		{"GET", id + "/logs?after=x&limit=x", "", bad, 400, "after must be a whole number"},
		{"GET", id + "/logs?limit=x", "", bad, 400, "limit must be a positive whole number"},
		{"GET", id + "/logs", "", bad, 404, "Build not found"},
		{"GET", "/api/builds?status=x&platform=X&worker_id=a%20b&limit=x", "", bad, 400, "Invalid status"},
		{"GET", "/api/builds?platform=X&worker_id=a%20b&limit=x", "", bad, 400, "Valid platform required"},
		{"GET", "/api/builds?worker_id=a%20b&limit=x", "", bad, 400, "Invalid worker_id"},
		{"PATCH", id, wrong, bad, 404, "Build not found"},
		{"GET", id + "/source", "", bad, 403, "Unknown worker"},
		{"GET", id + "/source", "", key("X-Worker-Id", "w", "X-Build-Attempt", "x"), 404, "Build not found"},
		{"GET", "/api/builds/b/source", "", key("X-Worker-Id", "w", "X-Build-Attempt", "x", "X-Worker-Instance", "a b"), 400, "Invalid X-Build-Attempt header"},
		{"GET", "/api/builds/b/source", "", key("X-Worker-Id", "w", "X-Worker-Instance", "a b"), 400, "Invalid X-Worker-Instance header"},
		{"POST", "/api/builds/b/telemetry", wrong, key("X-Worker-Id", "w", "X-Build-Id", "c", "X-Build-Attempt", "x"), 400, "Invalid X-Build-Attempt header"},
		{"POST", "/api/builds/b/telemetry", `{`, key("X-Worker-Id", "w", "X-Build-Id", "c"), 403, "X-Build-Id does not match the build"},
		{"POST", "/api/builds/b/logs", `{`, bad, 403, "Unknown worker"},
		{"POST", id + "/heartbeat", wrong, bad, 400, "worker_id required"},
		{"POST", id + "/heartbeat?worker_id=a%20b", wrong, bad, 400, "wrong type of progress"},
		{"POST", id + "/heartbeat?worker_id=a%20b", `{}`, bad, 404, "Build not found"},
		{"POST", "/api/builds/b/heartbeat?worker_id=a%20b", `{}`, bad, 403, "Build not assigned to this worker"},
		{"POST", "/api/builds/b/heartbeat?worker_id=w", `{}`, bad, 400, "Invalid X-Build-Attempt header"},
		{"POST", "/api/workers/fail", wrong, bad, 400, "build_id required"},
		{"POST", "/api/workers/fail", `{"build_id":"a b","error":7}`, bad, 400, "error must be a text"},
		{"POST", "/api/workers/fail", `{"build_id":"a b"}`, bad, 404, "Build not found"},
		{"POST", "/api/workers/fail", `{"build_id":"b"}`, bad, 400, "Invalid X-Build-Attempt header"},
		{"POST", "/api/workers/heartbeat", `{"build_id":"b"}`, bad, 400, "Invalid X-Build-Attempt header"},
		{"POST", "/api/workers/upload", wrong, bad, 400, "Invalid X-Build-Attempt header"},
	} {
		if c.method != http.MethodGet {
			c.header["Content-Type"] = "application/json"
		}
		r := b.send(c.method, c.path, c.header, c.body)
		require.Equal(t, c.status, r.status, "%s %s: %s", c.method, c.path, r.body)
		require.Contains(t, r.body, c.text, "%s %s", c.method, c.path)
	}
}
