package store

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Telemetry is a report of a worker's machine during a build. Figures are nil if they
// were not sent or are out of range.
type Telemetry struct {
	BuildID string
	// At is set by the store.
	At time.Time
	// Type is monitor_started, heartbeat, cpu_snapshot, or a type that newer monitors
	// send.
	Type  string
	Stage string
	// CPUPercent is 100 per core. MemoryMB is in MB.
	CPUPercent, MemoryMB, DiskPercent, Processes, UptimeSeconds *float64
}

// Limits of a telemetry report.
const (
	maxCPUPercent = 1000.0
	maxMemoryMB   = 1_000_000.0
)

// ParseTelemetry parses a telemetry report, in JSON. It ignores members of data that
// have the wrong type or range. Its error is InvalidArgument and may be shown.
func ParseTelemetry(kind, timestamp, data json.RawMessage) (t Telemetry, err error) {
	var members map[string]json.RawMessage
	if Absent(timestamp) || json.Unmarshal(kind, &t.Type) != nil || t.Type == "" || json.Unmarshal(data, &members) != nil || members == nil {
		return t, NewError(InvalidArgument, "Invalid telemetry data")
	}
	t.Type = word(t.Type)
	var stage string
	if json.Unmarshal(members["stage"], &stage) == nil {
		t.Stage = word(stage)
	}
	t.UptimeSeconds = figure(members["uptime_seconds"], 1e10)
	figures := members
	if t.Type == "heartbeat" {
		figures = nil
		_ = json.Unmarshal(members["metrics"], &figures) // none if it is not an object
	}
	t.CPUPercent, t.MemoryMB = figure(figures["cpu_percent"], maxCPUPercent), figure(figures["memory_mb"], maxMemoryMB)
	t.DiskPercent, t.Processes = figure(figures["disk_percent"], 100), figure(figures["processes"], 1e7)
	return t, nil
}

// figure is a number from 0 to limit; nil if it is anything else.
func figure(raw json.RawMessage, limit float64) *float64 {
	var n *float64
	if json.Unmarshal(raw, &n) != nil || n == nil || *n < 0 || *n > limit {
		return nil
	}
	return n
}

// Line returns t as a line of the build's log.
func (t Telemetry) Line() string {
	if t.Type == "monitor_started" {
		return "[VM] Monitor started"
	}
	var parts []string
	if t.Type == "heartbeat" {
		parts = append(parts, "Stage: "+cmp.Or(t.Stage, "unknown"))
	}
	for _, f := range []struct {
		name, unit string
		value      *float64
	}{
		{"CPU", "%", t.CPUPercent},
		{"Memory", " MB", t.MemoryMB},
		{"Disk", "%", t.DiskPercent},
		{"Processes", "", t.Processes},
		{"Uptime", " s", t.UptimeSeconds},
	} {
		if f.value != nil {
			parts = append(parts, f.name+": "+strconv.FormatFloat(*f.value, 'f', -1, 64)+f.unit)
		}
	}
	if len(parts) == 0 {
		parts = []string{t.Type}
	}
	return "[VM] " + strings.Join(parts, " | ")
}

// WorkerDetail is a worker with the last reports of its machine.
type WorkerDetail struct {
	Worker
	// Builds are those that it holds, BuildLabels their labels.
	Builds      []string
	BuildLabels []Labels
	// Telemetry is the last report; nil if there is none.
	Telemetry *Telemetry
	// Diagnostic is the verdict of the last report, and DiagnosedAt is its RunAt; "" if
	// there is none.
	Diagnostic  DiagnosticStatus
	DiagnosedAt time.Time
	// Finding is the message of the first check that failed, else of the first that warns.
	Finding string
	// State is the status, unless the worker gets no builds for another reason.
	State string
	// Key is the value by which a list is sorted.
	Key string
}
