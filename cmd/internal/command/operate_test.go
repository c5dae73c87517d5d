package command_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/command"
	"takt/cmd/internal/controllertest"
	"takt/cmd/internal/takttest"
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

const (
	queueReply = `{"id":"queue:1:2:3:0","portal_id":1,"workflow_id":"2","action_id":3,"depth":7,"held":1,"in_flight":2,"completed":42,"oldest":null,
		"rate_used":4,"max_throughput":5,"time_period":2,"time_unit":"minute","next_due":"2026-01-02T03:04:05.000Z",
		"last_error":"HubSpot said 500: \u001b[31mred","paused":true,"runner_at":null}`
	rateReply = `{"portal_id":1,"action_id":3,"max_throughput":5,"time_period":1,"time_unit":"hour","updated_at":"2026-01-02T03:04:05.000Z"}`
)

func TestThrottleCommands(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.answers("GET /admin/throttle/queues?limit=100", 200, `{"queues":[`+queueReply+`]}`)
	out := d.ok(t, "throttle", "queues")
	require.Equal(t, strings.Fields("queue:1:2:3:0 7 1 2 42 - 4 of 5 per 2 minutes 2026-01-02T03:04:05.000Z paused"), strings.Fields(strings.SplitN(out, "\n", 2)[1])[:14])
	require.NotContains(t, out, "\x1b", "HubSpot does not paint on terminals")
	require.Contains(t, d.ok(t, "__complete", "throttle", "pause", ""), "queue:1:2:3:0\t5 per 2 minutes")
	d.answers("GET /api/deployments?limit=100", 200, `{"deployments":[{"id":"one","state":"running"}]}`)
	require.Contains(t, d.ok(t, "__complete", "deployment", "cancel", ""), "one\trunning")
	d.answers("GET /admin/throttle/queues?limit=2&portal=1", 200, `{"queues":[]}`)
	require.Equal(t, 1, strings.Count(d.ok(t, "throttle", "queues", "-n", "2", "--portal", "1"), "\n"))
	for _, order := range []string{"pause", "resume"} {
		d.answers("POST /admin/throttle/queues/queue:1:2:3:0/"+order, 200, queueReply)
		require.Contains(t, d.ok(t, "throttle", order, "queue:1:2:3:0", "--reason", "why"), "queue:1:2:3:0")
	}
	d.answers("POST /admin/throttle/queues/queue:1:2:3:0/redrive", 200, `{"actions":3,"queue":`+queueReply+`}`)
	require.Equal(t, "actions tried again: 3\n", d.ok(t, "throttle", "redrive", "queue:1:2:3:0"))
	d.answers("POST /api/config", 200, rateReply)
	require.Contains(t, d.ok(t, "throttle", "config", "1", "3", "--max", "5", "--unit", "hours"), "5 per hour")
	d.answers("GET /api/config/1/3", 200, rateReply)
	require.Contains(t, d.ok(t, "throttle", "config", "1", "3"), "5 per hour")
	d.answers("GET /api/config/1", 200, `{"configs":[`+rateReply+`]}`)
	require.Contains(t, d.ok(t, "throttle", "config", "1", "--json"), `"max_throughput":5`)
	d.answers("DELETE /api/config/1/3", 204, "")
	require.Equal(t, "deleted\n", d.ok(t, "throttle", "config", "1", "3", "--delete"))
}

func TestThrottleCommandsRefuseWrongInput(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	for _, line := range []string{
		"nothing", "queues x", "queues -n -1", "queues --portal 0", "queues --portal -1", "queues --portal x",
		"config", "config x", "config 0", "config 1 -3", "config 1 2 3", "config 1 --max 3", "config 1 --delete",
		"config 1 2 --max 0", "config 1 2 --max -1", "config 1 2 --max x", "config 1 2 --time 3", "config 1 2 --unit hour",
		"config 1 2 --max 3 --time 0", "config 1 2 --max 3 --unit fortnight", "config 1 2 --max 3 --delete",
		"pause", "pause a b", "resume", "redrive",
	} {
		code, _, errs := d.takt(t.Context(), append([]string{"throttle"}, strings.Fields(line)...)...)
		require.Equal(t, 2, code, "%s: %s", line, errs)
	}
}

const loadReply = `{"enabled":true,"regulator":{"level":"alert","load":850,"soft_limit":1000,"hard_limit":1200,"regular_limit":960,
	"accepted":9,"rejected_regular":2,"rejected_hard":1,"drain_rate":12.6},
	"pools":[{"name":"fleet","health":"degraded","workers":10,"busy":9,"utilisation":0.9,"queue_length":3,"average_latency_ms":1.25,
	"error_rate":0.01,"processed":8,"refused":1,"expired":1,"min":5,"max":30,"overflow":256}],
	"balance":{"coefficient":0.75,"moves":2},"burst":{"enabled":true,"active":true,"until":1764000000000,"events":1},
	"changed":{"limits":{"soft":1000,"hard":1200,"reserved":0.2,"until":"2026-01-02T03:04:05Z"},
	"bounds":{"fleet":{"min":3,"max":30}},"affinity":{"query":{"pools":["hook"]},"hook":{}},"burst":{"enabled":false}}}`

func TestLoadCommand(t *testing.T) {
	t.Parallel()
	d := newTerminal(t)
	d.answers("GET /admin/heijunka", 200, loadReply)
	require.Equal(t, `load      alert: 850 requests admitted of at most 1200 (960 for all but workers), critical from 1000 on
so far    9 admitted, 3 refused; 13 end per second
balance   0.75, 2 places moved
burst     surge until 2025-11-24T16:00:00Z; demand 0.00, baseline 0.00, 1 surges so far

POOL   HEALTH    PLACES  BUSY  USED  WAITING  LATENCY  ERRORS  DONE  REFUSED  BOUNDS
fleet  degraded  10      9     90%   3        1.2ms    1.0%    8     2        5..30+256

changed   limits: soft 1000, hard 1200, reserved 20 % until 2026-01-02T03:04:05Z (undo: takt heijunka limits --reset)
          bounds of fleet: 3 to 30 places (undo: takt heijunka scale fleet --reset)
          hook prefers all pools of its list (undo: takt heijunka affinity hook --reset)
          query prefers hook (undo: takt heijunka affinity query --reset)
          bursts: not looked for (undo: takt heijunka surge enable)
`, d.ok(t, "heijunka"))
	require.Contains(t, d.ok(t, "load", "--json"), `"rejected_regular":2`)

	d.answers("PUT /admin/heijunka/limits", 200, loadReply)
	require.Contains(t, d.ok(t, "heijunka", "limits", "--hard", "1200", "--for", "2h", "--reason", "more"), "limits: soft 1000, hard 1200, reserved 20 % until 2026-01-02T03:04:05Z (undo: takt heijunka limits --reset)\n")
	d.answers("POST /admin/heijunka/pools/fleet/scale", 200, loadReply)
	for _, size := range []string{"--by=-2", "--workers=20", "--min=3"} {
		require.Contains(t, d.ok(t, "heijunka", "scale", "fleet", size, "--reason", "more"), "\nplaces: fleet 10\n")
	}
	d.answers("PUT /admin/heijunka/affinity", 200, loadReply)
	require.Contains(t, d.ok(t, "heijunka", "affinity", "query", "hook", "--reason", "try"), "fleet")
	require.Contains(t, d.ok(t, "heijunka", "affinity", "query", "--reset", "--reason", "try"), "fleet")
	d.answers("POST /admin/heijunka/surge", 200, loadReply)
	require.Contains(t, d.ok(t, "heijunka", "surge", "start", "--reason", "try"), "burst: surge until 2025-11-24T16:00:00Z")
	d.answers("POST /admin/heijunka/surge", 200, `{"enabled":true,"changed":{}}`)
	require.Contains(t, d.ok(t, "heijunka", "surge", "stop", "--reason", "try"), "all as configured\n")

	d.answers("POST /admin/heijunka/rebalance?dry_run=1", 200,
		`{"from":"query","to":"fleet","reason":"fleet has more","pools":[{"name":"fleet","utilisation":1,"demand":2.5,"workers":4,"min":1,"max":9}]}`)
	require.Equal(t, `would move a place from query to fleet: fleet has more
POOL   USED  PER PLACE  PLACES  BOUNDS
fleet  100%  2.50       4       1..9
`, d.ok(t, "heijunka", "rebalance", "--dry-run"))
	d.answers("POST /admin/heijunka/rebalance", 200, `{"reason":"all alike"}`)
	require.Contains(t, d.ok(t, "heijunka", "rebalance", "--reason", "try"), "nothing to move: all alike")
	for _, args := range [][]string{
		{"heijunka", "limits", "--hard", "9"}, {"heijunka", "scale", "fleet", "--by", "9"}, {"heijunka", "scale", "fleet", "--by", "many", "--reason", "x"}, {"heijunka", "rebalance"},
	} {
		code, _, _ := d.takt(t.Context(), args...)
		require.Equal(t, 2, code, args)
	}
}

func TestUnknownFlagsSayWhichKnownOneIsNearest(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	code := cli.Execute(t.Context(), command.New(takttest.Environment()), []string{"serve", "--qeue-limit", "7"}, &out, &out)
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, out.String(), "unknown flag: --qeue-limit; did you mean --queue-limit?")
}
