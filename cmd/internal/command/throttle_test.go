package command_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
