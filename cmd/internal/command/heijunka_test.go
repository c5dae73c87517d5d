package command_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
	require.Equal(t, `load      850 of 1200 (960 regular), alert; soft limit 1000
admitted  9, refused 3, 13 end per second
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
