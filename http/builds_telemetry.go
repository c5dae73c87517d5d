package http

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// Limits of what a monitor may say.
const (
	maxCPUPercent = 1000.0
	maxMemoryMB   = 1_000_000.0
	maxWord       = 100 // characters of a stage or a type
)

// telemetry handles POST /api/builds/:id/telemetry. Whatever the figures are, it is
// a sign of life.
func (h *holders) telemetry(ctx context.Context, c echo.Context) (any, error) {
	sign, err := holderOf(c)
	if err != nil {
		return nil, err
	}
	var body struct {
		Type      json.RawMessage `json:"type"`
		Timestamp json.RawMessage `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}
	if _, err := readJSON(c, &body); err != nil {
		return nil, err
	}
	if absent(body.Timestamp) {
		return nil, invalid(invalidTelemetry)
	}
	t, err := readTelemetry(body.Type, body.Data)
	if err != nil {
		return nil, err
	}
	sign.Logs = []store.LogLine{{Level: store.Info, Message: telemetryLine(t)}}
	reply, err := h.store.Telemetry(ctx, sign, t)
	return api.Status{Status: "ok"}, h.signed(sign, reply, err)
}

const invalidTelemetry = "Invalid telemetry data"

// readTelemetry reads what a monitor says. Members of its data are taken if they are
// what they should be, and passed over if not.
func readTelemetry(kind, data json.RawMessage) (store.Telemetry, error) {
	var t store.Telemetry
	if json.Unmarshal(kind, &t.Type) != nil || t.Type == "" {
		return t, invalid(invalidTelemetry)
	}
	t.Type = word(t.Type)
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil || members == nil {
		return t, invalid(invalidTelemetry)
	}
	var stage string
	if json.Unmarshal(members["stage"], &stage) == nil {
		t.Stage = word(stage)
	}
	t.UptimeSeconds = figure(members["uptime_seconds"], 1e10)
	figures := members
	if t.Type == "heartbeat" {
		figures = nil
		_ = json.Unmarshal(members["metrics"], &figures) // none if it is no object
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

// word makes a stranger's word fit for a line of a log.
func word(s string) string {
	s = strings.Join(strings.Fields(text(s)), " ")
	if utf8.RuneCountInString(s) > maxWord {
		s = string([]rune(s)[:maxWord])
	}
	return s
}

// telemetryLine says t in the words of the build's log.
func telemetryLine(t store.Telemetry) string {
	if t.Type == "monitor_started" {
		return "[VM] Monitor started"
	}
	var parts []string
	add := func(name, value, unit string) { parts = append(parts, name+": "+value+unit) }
	if t.Type == "heartbeat" {
		stage := t.Stage
		if stage == "" {
			stage = "unknown"
		}
		add("Stage", stage, "")
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
			add(f.name, strconv.FormatFloat(*f.value, 'f', -1, 64), f.unit)
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("[VM] %s", t.Type)
	}
	return "[VM] " + strings.Join(parts, " | ")
}
