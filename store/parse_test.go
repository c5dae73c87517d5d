package store_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"takt/store"
)

func FuzzTelemetry(f *testing.F) {
	f.Add([]byte(`"heartbeat"`), []byte(`{"heartbeat_count":1,"stage":"x","metrics":{"cpu_percent":1e3,"memory_mb":-1},"uptime_seconds":1}`))
	f.Add([]byte(`"cpu_snapshot"`), []byte(`{"cpu_percent":1e999,"memory_mb":null}`))
	f.Add([]byte(`"monitor_started"`), []byte(`{}`))
	f.Add([]byte(`"\u0000\ud800 a\n"`), []byte(`{"stage":"\u001b[31m"}`))
	f.Add([]byte(`null`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, kind, data []byte) {
		got, err := store.ParseTelemetry(kind, []byte(`"now"`), data)
		if err != nil {
			return
		}
		for _, n := range []*float64{got.CPUPercent, got.MemoryMB, got.DiskPercent, got.Processes, got.UptimeSeconds} {
			require.True(t, n == nil || *n >= 0 && *n <= 1e10 && !math.IsNaN(*n))
		}
		require.True(t, got.CPUPercent == nil || *got.CPUPercent <= 1000)
		require.True(t, got.MemoryMB == nil || *got.MemoryMB <= 1e6)
		line := got.Line()
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "\x00")
		require.True(t, utf8.ValidString(line))
		require.Less(t, len(line), 2000)
	})
}

func FuzzDiagnosticReport(f *testing.F) {
	f.Add([]byte(`{"worker_id":"w","status":"healthy","run_at":1764000000000,"duration_ms":1.5,"auto_fixed":true,"checks":[{"name":"x"}]}`))
	f.Add([]byte(`{"worker_id":"w","status":"critical","run_at":1e12,"duration_ms":0,"checks":[{"a":"\u0000\ud800"},{}]}`))
	f.Add([]byte(`{"worker_id":"../w","status":"healthy","run_at":-1,"duration_ms":1e300,"checks":[null]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var members map[string]json.RawMessage
		if json.Unmarshal(body, &members) != nil {
			return
		}
		r, err := store.ParseDiagnostic(members)
		if err != nil {
			return
		}
		require.True(t, r.Status.Valid())
		require.False(t, r.RunAt.Before(time.UnixMilli(0)))
		require.GreaterOrEqual(t, r.Duration, time.Duration(0))
		require.True(t, utf8.Valid(r.Checks))
		var again []map[string]any
		require.NoError(t, json.Unmarshal(r.Checks, &again))
		require.NotNil(t, again)
	})
}

func FuzzRegistration(f *testing.F) {
	f.Add([]byte(`"id"`), []byte(`"name"`), []byte(`{"platforms":["ios"],"maxConcurrentBuilds":2}`))
	f.Add([]byte(`null`), []byte(`7`), []byte(`{"platforms":"ios","maxConcurrentBuilds":1e400}`))
	f.Add([]byte(`"../x"`), []byte(`"\u0000"`), []byte(`[]`))
	f.Fuzz(func(t *testing.T, id, name, capabilities []byte) {
		reg, err := store.ParseRegistration(id, name, capabilities, nil, nil, nil)
		if err != nil {
			require.Equal(t, store.RegistrationFailed, store.CodeOf(err))
			return
		}
		require.True(t, reg.ID == "" || store.ValidID(reg.ID))
		require.NotEmpty(t, reg.Name)
		require.NotContains(t, reg.Name, "\x00")
		require.True(t, reg.Slots >= 1 && reg.Slots <= 256)
		require.True(t, json.Valid(reg.Capabilities))
		for _, p := range reg.Platforms {
			require.True(t, store.ValidID(string(p)))
		}
	})
}

func TestDiagnosticFindingIsTheWorstCheck(t *testing.T) {
	t.Parallel()
	for checks, want := range map[string]string{
		`{"status":"pass","message":"a"}`: "",
		`{"status":"pass","message":"a"},{"status":"warn","message":"b"},{"status":"warn","message":"c"}`: "b",
		`{"status":"warn","message":"b"},{"status":"fail","message":"c"},{"status":"fail","message":"d"}`: "c",
	} {
		r, err := store.ParseDiagnostic(map[string]json.RawMessage{
			"worker_id": []byte(`"w"`), "status": []byte(`"warning"`), "run_at": []byte("1"), "duration_ms": []byte("1"), "checks": []byte("[" + checks + "]"),
		})
		require.NoError(t, err)
		require.Equal(t, want, r.Finding)
	}
}
