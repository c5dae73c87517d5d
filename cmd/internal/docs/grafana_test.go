package docs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/takttest"
)

// board is a dashboard of Grafana; each row of it is a panel: its title, the unit, and
// pairs of a legend and an expression.
type board struct {
	name, title string
	panels      [][]string
}

// rateBy, gaugeBy and quantile are the expressions of most panels: the rate of a counter and the last
// value of a gauge, by labels, and a quantile of a histogram.
func rateBy(metric, by string) string {
	return fmt.Sprintf("sum by (%s) (rate(%s[$__rate_interval]))", by, metric)
}

func gaugeBy(metric, by string) string { return fmt.Sprintf("max by (%s) (%s)", by, metric) }

func quantile(q, histogram, by string) string {
	if by != "" {
		by = ", " + by
	}
	return fmt.Sprintf("histogram_quantile(%s, sum by (le%s) (rate(%s_bucket[$__rate_interval])))", q, by, histogram)
}

// boards is the table from which deploy/grafana is written.
func boards() []board {
	return []board{
		{"fleet", "takt: fleet", [][]string{
			{"Workers", "short", "{{state}}", gaugeBy("takt_workers", "state")},
			{"Lives of workers", "ops", "{{step}}", rateBy("takt_worker_steps_total", "step")},
			{"Attempts lost", "ops", "{{reason}}", rateBy("takt_build_attempts_lost_total", "reason")},
			{"Builds that ended", "ops", "{{platform}} {{result}}", rateBy("takt_builds_ended_total", "platform, result")},
			{
				"Duration of builds", "s", "{{platform}} {{result}} p50", quantile("0.5", "takt_build_duration_seconds", "platform, result"),
				"{{platform}} {{result}} p95", quantile("0.95", "takt_build_duration_seconds", "platform, result"),
			},
			{"From cancelling to telling the worker", "s", "p50", quantile("0.5", "takt_build_cancel_seconds", ""), "p99", quantile("0.99", "takt_build_cancel_seconds", "")},
			{
				"Worker tokens", "ops", "rotated", "sum(rate(takt_worker_tokens_rotated_total[$__rate_interval]))",
				"refused", "sum(rate(takt_worker_tokens_refused_total[$__rate_interval]))",
			},
			{
				"Bytes stored and read", "Bps", "{{operation}} {{kind}}", rateBy("takt_storage_bytes_total", "operation, kind"),
			},
			{"Latency of storage, p99", "s", "{{operation}} {{kind}}", quantile("0.99", "takt_storage_duration_seconds", "operation, kind")},
		}},
		{"queue", "takt: queue and waiting", [][]string{
			{"Builds that wait", "short", "{{platform}}", gaugeBy("takt_queue_pending_builds", "platform"), "no known worker can take them", "max(takt_queue_unmatched_builds)"},
			{"Submitted", "ops", "{{platform}}", rateBy("takt_builds_submitted_total", "platform")},
			{
				"From submit to hand-out", "s", "{{platform}} priority {{priority}} p50", quantile("0.5", "takt_build_wait_seconds", "platform, priority"),
				"{{platform}} priority {{priority}} p95", quantile("0.95", "takt_build_wait_seconds", "platform, priority"),
			},
			{
				"Polls", "ops", "answered from memory", "sum(rate(takt_queue_idle_polls_total[$__rate_interval]))",
				"in a transaction", "sum(rate(takt_queue_polls_total[$__rate_interval]))",
				"handed out", "sum(rate(takt_queue_assigned_total[$__rate_interval]))",
				"handed out again", "sum(rate(takt_queue_redelivered_total[$__rate_interval]))",
				"failed", "sum(rate(takt_queue_failed_polls_total[$__rate_interval]))",
			},
			{"Polls that are parked or wait", "short", "parked", "sum(takt_queue_parked_polls)", "wait for a transaction", "sum(takt_queue_waiting_polls)"},
			{"Polls in a transaction", "short", "p50", quantile("0.5", "takt_queue_batch_polls", ""), "p99", quantile("0.99", "takt_queue_batch_polls", "")},
			{"Time of a transaction", "s", "p50", quantile("0.5", "takt_queue_transaction_duration_seconds", ""), "p99", quantile("0.99", "takt_queue_transaction_duration_seconds", "")},
		}},
		{"levelling", "takt: load levelling", [][]string{
			{
				"Load and limits", "short", "{{instance}} load", gaugeBy("takt_heijunka_load", "instance"),
				"{{instance}} soft limit", gaugeBy("takt_heijunka_soft_limit", "instance"), "{{instance}} hard limit", gaugeBy("takt_heijunka_hard_limit", "instance"),
			},
			{"Headroom", "short", "{{instance}} {{class}}", gaugeBy("takt_heijunka_headroom", "instance, class")},
			{"Level (0 normal, 1 alert, 2 critical)", "short", "{{instance}}", gaugeBy("takt_heijunka_level", "instance")},
			{"Refused", "ops", "{{rule}}", rateBy("takt_heijunka_rejected_total", "rule")},
			{"Wait for a place, p99", "s", "{{pool}}", quantile("0.99", "takt_heijunka_wait_seconds", "pool")},
			{"Places in use", "percentunit", "{{instance}} {{pool}}", gaugeBy("takt_heijunka_pool_utilisation", "instance, pool")},
			{"Processors of the machine", "percentunit", "{{instance}} {{mode}}", "sum by (instance, mode) (rate(takt_host_cpu_seconds_total[$__rate_interval])) / on (instance) group_left () sum by (instance) (rate(takt_host_cpu_seconds_total[$__rate_interval]))"},
			{"Memory that is available", "percentunit", "{{instance}}", "takt_host_memory_available_bytes / takt_host_memory_bytes"},
			{"Duration of requests, p99", "s", "{{method}} {{route}}", quantile("0.99", "takt_http_request_duration_seconds", "method, route")},
		}},
		{"tree", "takt: supervision tree", [][]string{
			{"Restarts", "ops", "{{process}}", rateBy("takt_supervisor_restarts_total", "process")},
			{"Supervision events", "ops", "{{kind}}", rateBy("takt_supervisor_events_total", "kind")},
			{"Processes", "short", "{{instance}} {{process}}", gaugeBy("takt_processes", "instance, process")},
			{"Abandoned processes", "short", "{{instance}}", gaugeBy("takt_leaked_processes", "instance")},
			{"Messages that wait", "short", "{{instance}} {{process}}", gaugeBy("takt_process_mailbox_messages", "instance, process")},
			{"Busy", "percentunit", "{{process}}", rateBy("takt_process_busy_seconds_total", "process")},
			{"Ready", "short", "{{instance}}", gaugeBy("takt_ready", "instance")},
		}},
		{"database", "takt: database and disk", [][]string{
			{"Slowest statements, p99", "s", "{{statement}}", "topk(10, " + quantile("0.99", "takt_database_statement_duration_seconds", "statement") + ")"},
			{"Slowest statements, p50", "s", "{{statement}}", "topk(10, " + quantile("0.5", "takt_database_statement_duration_seconds", "statement") + ")"},
			{
				"Slower than a day ago (mean, factor)", "short", "{{statement}}",
				"topk(10, (" + mean("", "1h") + ") / (" + mean(" offset 1d", "1h") + "))",
			},
			{"Time in statements", "percentunit", "{{statement}}", "topk(10, " + rateBy("takt_database_statement_duration_seconds_sum", "statement") + ")"},
			{"Statements", "ops", "{{statement}}", "topk(10, " + rateBy("takt_database_statement_duration_seconds_count", "statement") + ")"},
			{"Errors", "ops", "{{statement}}", rateBy("takt_database_statement_errors_total", "statement")},
			{"Wait for a connection", "s", "p50", quantile("0.5", "takt_database_connection_wait_seconds", ""), "p99", quantile("0.99", "takt_database_connection_wait_seconds", "")},
			{"Connections", "short", "{{instance}} open", gaugeBy("takt_pool_connections", "instance"), "{{instance}} in use", gaugeBy("takt_pool_busy_connections", "instance")},
			{"Vacuum held back", "s", "{{instance}}", gaugeBy("takt_vacuum_held_back_seconds", "instance")},
			{"Disk space", "percentunit", "{{instance}}", "takt_host_disk_free_bytes / takt_host_disk_bytes"},
			{"Disk traffic", "Bps", "{{instance}} read", rateBy("takt_host_disk_read_bytes_total", "instance"), "{{instance}} written", rateBy("takt_host_disk_written_bytes_total", "instance")},
		}},
		{"throttle", "takt: throttle", [][]string{
			{"Actions received", "ops", "{{what}}", rateBy("takt_throttle_actions_received_total", "what")},
			{"Actions finished", "ops", "{{how}}", rateBy("takt_throttle_actions_finished_total", "how")},
			{"Actions that wait", "short", "waiting", "max(takt_throttle_actions_waiting)"},
			{"Age of the oldest", "s", "oldest", "max(takt_throttle_oldest_action_seconds)"},
			{"Calls to HubSpot, p99", "s", "{{answer}}", quantile("0.99", "takt_throttle_call_duration_seconds", "answer")},
			{"Failures", "ops", "failures", "sum(rate(takt_throttle_action_failures_total[$__rate_interval]))"},
			{"Queues that had lost their job (should stay 0)", "short", "restored", "sum(takt_throttle_jobs_restored_total)"},
		}},
		{"deployments", "takt: deployments", [][]string{
			{"Deployments", "short", "{{instance}}", gaugeBy("takt_deployments_active", "instance")},
			{"Repositories being copied", "short", "{{instance}}", gaugeBy("takt_deployments_copying_repositories", "instance")},
			{
				"Repositories", "ops", "done", "sum(rate(takt_deployments_done_total[$__rate_interval]))",
				"failed", "sum(rate(takt_deployments_failed_total[$__rate_interval]))", "skipped", "sum(rate(takt_deployments_skipped_total[$__rate_interval]))",
			},
		}},
	}
}

// mean is the mean duration of each statement over a window.
func mean(offset, window string) string {
	const h = "takt_database_statement_duration_seconds"
	of := func(part string) string {
		return fmt.Sprintf("sum by (statement) (rate(%s_%s[%s]%s))", h, part, window, offset)
	}
	return of("sum") + " / " + of("count")
}

// json is the dashboard as Grafana reads it, one panel per line.
func (b board) json(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"uid": "takt-%s", "title": %q, "schemaVersion": 39, "editable": true, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
"templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
"panels": [`, b.name, b.title)
	for i, row := range b.panels {
		type object = map[string]any
		var targets []object
		for n := 2; n < len(row); n += 2 {
			targets = append(targets, object{"refId": string(rune('A' + n/2 - 1)), "legendFormat": row[n], "expr": row[n+1]})
		}
		var line bytes.Buffer
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		require.NoError(t, encoder.Encode(object{
			"id": i + 1, "type": "timeseries", "title": row[0], "datasource": object{"type": "prometheus", "uid": "${datasource}"},
			"gridPos": object{"x": 12 * (i % 2), "y": 8 * (i / 2), "w": 12, "h": 8}, "targets": targets,
			"fieldConfig": object{"defaults": object{"unit": row[1]}},
		}))
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "\n%s", bytes.TrimSpace(line.Bytes()))
	}
	out.WriteString("\n]}\n")
	require.True(t, json.Valid(out.Bytes()), b.name)
	return out.Bytes()
}

func TestDocsOfDashboardsAreCurrent(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(takttest.File("deploy", "grafana", "*.json"))
	require.NoError(t, err)
	if !updateDocs {
		require.Len(t, files, len(boards()), "each file has its board")
	}
	for _, b := range boards() {
		generated(t, filepath.Join("..", "deploy", "grafana", b.name+".json"), string(b.json(t)))
	}
}

// The panels that docs/operate.md names, in italics, are there.
func TestOperateNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(takttest.Operate())
	require.NoError(t, err)
	var titles []string
	for _, b := range boards() {
		titles = append(titles, strings.TrimPrefix(b.title, "takt: "))
		for _, row := range b.panels {
			titles = append(titles, row[0])
		}
	}
	named := regexp.MustCompile(`(?:^|[\s(])\*([A-Za-z][^*]+)\*`).FindAllStringSubmatch(string(raw), -1)
	require.Greater(t, len(named), 15)
	for _, m := range named {
		name := strings.Join(strings.Fields(m[1]), " ")
		require.True(t, slices.ContainsFunc(titles, func(title string) bool { return strings.HasPrefix(title, name) }), name)
	}
}
