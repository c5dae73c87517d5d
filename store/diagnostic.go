package store

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"time"
)

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

// DiagnosticReport is a worker's report about its own condition.
type DiagnosticReport struct {
	ID       string
	WorkerID string
	Status   DiagnosticStatus
	// RunAt is when the worker ran the checks, by the worker's own clock.
	RunAt     time.Time
	Duration  time.Duration
	AutoFixed bool
	// Checks is a JSON array, as sent.
	Checks json.RawMessage
	// Finding is the message of the first check that failed, else of the first that warns,
	// on one line. It is only written, never read.
	Finding string
	// File is the same report as a file in storage.
	File File
}

// maxMillis is in the year 2227. It still fits a time.Duration.
const maxMillis = 8_125_920_000_000

// ParseDiagnostic checks a worker's report about itself, in JSON. Its errors may be
// shown: NotFound for an impossible worker id, else InvalidArgument.
func ParseDiagnostic(body map[string]json.RawMessage) (r DiagnosticReport, err error) {
	for _, name := range []string{"worker_id", "status", "run_at", "duration_ms", "checks"} {
		if Absent(body[name]) {
			return r, NewError(InvalidArgument, "Missing field: "+name)
		}
	}
	var runAt, duration float64
	for name, to := range map[string]any{
		"worker_id": &r.WorkerID, "status": &r.Status, "run_at": &runAt, "duration_ms": &duration, "auto_fixed": &r.AutoFixed,
	} {
		if raw := body[name]; !Absent(raw) && json.Unmarshal(raw, to) != nil {
			return r, NewError(InvalidArgument, "Invalid body: wrong type of "+name)
		}
	}
	switch {
	case !ValidID(r.WorkerID):
		return r, NewError(NotFound, "Worker not found")
	case !r.Status.Valid():
		return r, NewError(InvalidArgument, "Invalid status. Must be: healthy, warning, or critical")
	case runAt < 0 || runAt > maxMillis:
		return r, NewError(InvalidArgument, "run_at must be milliseconds since 1970")
	case duration < 0 || duration > maxMillis:
		return r, NewError(InvalidArgument, "duration_ms must be a number of milliseconds")
	}
	r.RunAt = time.UnixMilli(int64(runAt))
	r.Duration = time.Duration(math.Round(duration)) * time.Millisecond
	var list []map[string]json.RawMessage
	var checks bytes.Buffer // as sent, but without what the database refuses
	if json.Unmarshal(body["checks"], &list) != nil || slices.ContainsFunc(list, func(check map[string]json.RawMessage) bool { return check == nil }) ||
		json.Compact(&checks, bytes.ToValidUTF8(body["checks"], []byte("\uFFFD"))) != nil {
		return r, NewError(InvalidArgument, "checks must be an array of objects")
	}
	// Those who read the reports rely on the types, and one check would break the whole list.
	for _, check := range list {
		for name, to := range map[string]any{"name": new(string), "status": new(string), "message": new(string), "duration_ms": new(float64), "auto_fixed": new(bool)} {
			if raw, ok := check[name]; ok && (Absent(raw) || json.Unmarshal(raw, to) != nil) {
				return r, NewError(InvalidArgument, "Invalid body: wrong type of "+name+" of a check")
			}
		}
	}
	r.Checks = checks.Bytes()
	for _, verdict := range []string{"fail", "warn"} {
		for _, check := range list {
			var status, message string
			if r.Finding == "" && json.Unmarshal(check["status"], &status) == nil && status == verdict && json.Unmarshal(check["message"], &message) == nil {
				r.Finding = word(message)
			}
		}
	}
	return r, nil
}
