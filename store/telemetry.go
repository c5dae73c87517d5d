package store

import (
	"encoding/json"
	"time"
)

// Telemetry is what a worker's machine says of itself while it builds. Figures
// are nil if they were not sent, or make no sense.
type Telemetry struct {
	BuildID string
	// At is set by the store.
	At time.Time
	// Type is monitor_started, heartbeat, cpu_snapshot, or what newer monitors
	// send.
	Type  string
	Stage string
	// CPUPercent is 100 per core, MemoryMB in MB.
	CPUPercent, MemoryMB, DiskPercent, Processes, UptimeSeconds *float64
}

// DiagnosticStatus is the verdict of a diagnostic report.
type DiagnosticStatus string

// The verdicts.
const (
	Healthy  DiagnosticStatus = "healthy"
	Warning  DiagnosticStatus = "warning"
	Critical DiagnosticStatus = "critical"
)

// Valid reports whether s is a known verdict.
func (s DiagnosticStatus) Valid() bool { return s == Healthy || s == Warning || s == Critical }

// DiagnosticReport is what a worker found out about itself.
type DiagnosticReport struct {
	ID       string
	WorkerID string
	Status   DiagnosticStatus
	// RunAt is when the worker says that it looked.
	RunAt     time.Time
	Duration  time.Duration
	AutoFixed bool
	// Checks is a JSON array, as sent.
	Checks json.RawMessage
	// File has the same, in storage.
	File File
}

// WorkerDetail is a worker with what is known of its machine.
type WorkerDetail struct {
	Worker
	// Builds are those that it holds.
	Builds []string
	// Telemetry is the last; nil if there is none.
	Telemetry *Telemetry
	// Diagnostic is the verdict of the last report, DiagnosedAt its RunAt; "" if
	// there is none.
	Diagnostic  DiagnosticStatus
	DiagnosedAt time.Time
}

// WorkerFilter selects workers; empty fields match all.
type WorkerFilter struct {
	ID     string
	Status WorkerStatus
	// Limit is the most to return; 0 means all.
	Limit int
}
