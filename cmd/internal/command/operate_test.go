package command_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/controllertest"
	"takt/store"
)

// answers makes the terminal's controller answer one request line with status and
// body.
func (d *terminal) answers(line string, status int, body string) {
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		keyed := r.Header.Get("X-Admin-Key") == controllertest.AdminKey
		if !strings.HasPrefix(r.URL.Path, "/admin/") {
			keyed = r.Header.Get("X-API-Key") == controllertest.APIKey
		}
		if r.Method+" "+r.URL.RequestURI() != line || !keyed {
			return false
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
		return true
	})
}

func TestRequeueCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.Submit("ios", nil, nil)
	d.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method+" "+r.URL.Path != "POST /api/builds/build-1/requeue" || r.Header.Get("X-Admin-Key") != controllertest.AdminKey {
			return false
		}
		fmt.Fprint(w, `{"id":"build-1","status":"pending","state":"pending"}`)
		return true
	})
	require.Equal(t, "build-1 pending\n", d.ok(t, "requeue", "build-1", "--reason", "stuck"))
	d.fails(t, 2, "--reason is required", "requeue", "build-1")
}

func TestRestartCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.answers("POST /admin/tree/database/pool/restart?timeout=10", 200, `{"id":"pool","path":"takt/database/pool","status":"running","uptime_ms":1}`)
	require.Equal(t, "pool  running, up 0s\n", d.ok(t, "restart", "/database/pool", "--reason", "stuck"))
	require.Contains(t, d.ok(t, "restart", "database/pool", "--reason", "stuck", "--json"), `"path":"takt/database/pool"`)

	d.answers("POST /admin/tree/endpoint/restart?force=1&timeout=1.5", 202, `{"action":"restart","path":"takt/endpoint","detached":true}`)
	require.Contains(t, d.ok(t, "restart", "endpoint", "--reason", "stuck", "--force", "--timeout", "1500ms"), "takt/endpoint is about to restart")

	d.answers("POST /admin/tree/database/restart?dry_run=1&timeout=10", 200,
		`{"action":"restart","path":"takt/database","affected":["takt/database/pool","takt/database"],"requests":3,"detached":true}`)
	require.Equal(t, `restart takt/database affects, in this order:
  takt/database/pool
  takt/database
requests under way: 3
the reply comes first: the HTTP server stops too
`, d.ok(t, "restart", "database", "--dry-run"))

	d.fails(t, 2, "--reason is required", "restart", "database")

	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		controllertest.Problem(w, http.StatusGatewayTimeout, store.Timeout, "takt/database/pool is still suspended")
		return true
	})
	d.fails(t, 5, "takt/database/pool is still suspended", "restart", "database", "--reason", "stuck")
}

func TestAuditCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.answers("GET /admin/audit?limit=2", 200, `{"entries":[
		{"id":2,"at":"2025-11-24T16:00:00.000Z","actor":"admin@::1","action":"restart","target":"takt/database","reason":"st\u001buck","outcome":null},
		{"id":1,"at":"2025-11-24T15:00:00.000Z","actor":"admin@::1","action":"set","target":"heartbeat","reason":"","outcome":"done"}]}`)
	shown := d.ok(t, "audit", "-n", "2")
	require.Contains(t, shown, "restart  takt/database  -        st\uFFFDuck")
	require.Contains(t, shown, "set      heartbeat      done")
	require.Contains(t, d.ok(t, "audit", "-n", "2", "--json"), `[{"id":2`)
}

func TestTreeIsWatchedUntilInterrupted(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	asked := 0
	d.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		switch asked++; asked {
		case 2: // away for a moment
			controllertest.Problem(w, http.StatusServiceUnavailable, store.Unavailable, "restarting")
			return true
		case 4:
			cancel(context.Canceled)
		}
		return false
	})
	code, out, errs := d.takt(ctx, "tree", "--watch")
	require.Zero(t, code, errs)
	require.Equal(t, 2, strings.Count(out, "|-- database"))
	require.NotContains(t, out, "\x1b", "no terminal")
	require.Contains(t, errs, "restarting")
}

func TestAuditCheckAndRepairCommands(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	reply := func(broken, repaired string) string {
		return `{"invariants":[{"name":"worker_held","promise":"It counts.","broken":` + broken + `,"examples":["w1"],"repairable":true,"repaired":` + repaired + `}]}`
	}
	d.answers("GET /admin/audit/check", 200, reply("0", "0"))
	require.Contains(t, d.ok(t, "audit", "check"), "worker_held  holds  It counts.")
	d.answers("GET /admin/audit/check", 200, reply("1", "0"))
	code, out, errs := d.takt(t.Context(), "audit", "check")
	require.Equal(t, 1, code)
	require.Contains(t, out, "1 broken: w1")
	require.Contains(t, errs, "does not keep every promise")
	code, out, _ = d.takt(t.Context(), "repair", "--dry-run")
	require.Equal(t, 1, code)
	require.Contains(t, out, "1 to repair: w1")
	d.fails(t, 2, "--reason is required", "repair")
	d.answers("POST /admin/audit/check", 200, reply("1", "1"))
	require.Contains(t, d.ok(t, "repair", "--reason", "a bad restore"), "1 repaired: w1")
}

func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.env["TERM"] = "xterm"
	d.fails(t, 2, "needs a terminal", "top")
}
