package http_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
)

func (b *fixture) telemetry(build, worker, body string) reply {
	b.t.Helper()
	return b.json("POST", "/api/builds/"+build+"/telemetry", key("X-Worker-Id", worker, "X-Build-Id", build), body)
}

func TestTelemetryIsLoggedAndCountsAsASign(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, w := b.assigned()
	for _, tt := range []struct{ body, line string }{
		{`{"type":"monitor_started","timestamp":"2025-11-24T16:00:00Z","data":{}}`, "[VM] Monitor started"},
		{
			`{"type":"heartbeat","timestamp":"2025-11-24T16:00:00Z","data":{"heartbeat_count":1,"stage":"xcodebuild","uptime_seconds":61,
				"metrics":{"cpu_percent":142.5,"memory_mb":2048,"disk_percent":40,"processes":213}}}`,
			"[VM] Stage: xcodebuild | CPU: 142.5% | Memory: 2048 MB | Disk: 40% | Processes: 213 | Uptime: 61 s",
		},
		{`{"type":"heartbeat","timestamp":"t","data":{"stage":"pods"}}`, "[VM] Stage: pods"},
		{`{"type":"heartbeat","timestamp":"t","data":{"metrics":null}}`, "[VM] Stage: unknown"},
		{`{"type":"heartbeat","timestamp":"t","data":{"stage":7,"metrics":[1]}}`, "[VM] Stage: unknown"},
		{`{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":1000,"memory_mb":1000000}}`, "[VM] CPU: 1000% | Memory: 1000000 MB"},
		{`{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":1000.1,"memory_mb":-1}}`, "[VM] cpu_snapshot"},
		{`{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":"all","memory_mb":1e400}}`, "[VM] cpu_snapshot"},
		{`{"type":"new\u0000 thing\n","timestamp":1,"data":{}}`, "[VM] new\uFFFD thing"},
	} {
		r := b.telemetry(s.ID, w.ID, tt.body)
		require.Equal(t, 200, r.status, "%s: %s", tt.body, r.body)
		requireBody(t, `{"status":"ok"}`, r)
		lines := b.messages(s.ID)
		require.Equal(t, tt.line, lines[len(lines)-1])
	}
	require.Equal(t, "building", b.status(s.ID).Status)
	last := b.worker(w.ID).Telemetry
	require.InDelta(t, 1000, *last.CPUPercent, 0, "what made no sense was not stored")
	require.InDelta(t, 1e6, *last.MemoryMB, 0)

	before := len(b.messages(s.ID))
	for _, body := range []string{
		``, `{}`, `{"type":"heartbeat","timestamp":"t"}`, `{"type":"heartbeat","data":{}}`, `{"timestamp":"t","data":{}}`,
		`{"type":"","timestamp":"t","data":{}}`, `{"type":7,"timestamp":"t","data":{}}`, `{"type":"heartbeat","timestamp":"t","data":null}`,
		`{"type":"heartbeat","timestamp":null,"data":{}}`, `{"type":"heartbeat","timestamp":"t","data":[]}`, `{"type":"heartbeat","timestamp":"t","data":"x"}`,
	} {
		r := b.telemetry(s.ID, w.ID, body)
		require.Equal(t, 400, r.status, body)
		requireProblem(t, r, "Invalid telemetry data", "invalid_argument")
	}
	require.Len(t, b.messages(s.ID), before)
}

func TestTelemetryWithoutAKey(t *testing.T) {
	t.Parallel()
	const body = `{"type":"cpu_snapshot","timestamp":"t","data":{"cpu_percent":5,"memory_mb":6}}`
	b := setup(t, func(c *takthttp.Config) { c.TelemetryWithoutKey = true })
	s, w := b.assigned()
	other := b.register("other")
	for name, tt := range map[string]struct {
		header map[string]string
		status int
	}{
		"its holder":     {map[string]string{"X-Worker-Id": w.ID, "X-Build-Id": s.ID}, 200},
		"another worker": {map[string]string{"X-Worker-Id": other.ID, "X-Build-Id": s.ID}, 403},
		"another build":  {map[string]string{"X-Worker-Id": w.ID, "X-Build-Id": "other"}, 403},
		"no worker":      {map[string]string{"X-Build-Id": s.ID}, 401},
		"no build":       {map[string]string{"X-Worker-Id": w.ID}, 401},
		"a wrong key":    {map[string]string{"X-Worker-Id": w.ID, "X-Build-Id": s.ID, "X-API-Key": "wrong"}, 403},
	} {
		r := b.json("POST", "/api/builds/"+s.ID+"/telemetry", tt.header, body)
		require.Equal(t, tt.status, r.status, "%s: %s", name, r.body)
	}
	r := b.json("POST", "/api/builds/"+s.ID+"/logs", map[string]string{"X-Worker-Id": w.ID, "X-Build-Id": s.ID}, `{"level":"info","message":"x"}`)
	require.Equal(t, 401, r.status, "nothing else is open")
}
