package api

import "takt/store"

// LogEntry is one line of a build's log.
type LogEntry struct {
	Timestamp Millis `json:"timestamp"`
	Level     string `json:"level" enum:"info,warn,error"`
	Message   string `json:"message"`
	// Seq is the line's number; ?after= takes it to continue from there.
	Seq int64 `json:"seq"`
	// By and Why are there in the line that says that the build was cancelled, as in its Ended.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
}

// NewLogEntry converts a line.
func NewLogEntry(l store.LogLine) LogEntry {
	return LogEntry{Timestamp: millis(l.At), Level: string(l.Level), Message: l.Message, Seq: l.Seq, By: l.By, Why: l.Why}
}

// Logs answers GET /api/builds/:id/logs, oldest first.
type Logs struct {
	BuildID string     `json:"build_id" schema:"ID"`
	Logs    []LogEntry `json:"logs"`
}

// LogEnd is the data of the last event of a log's stream.
type LogEnd struct {
	BuildID string `json:"build_id" schema:"ID"`
	Status  string `json:"status" enum:"completed,failed"`
	State   string `json:"state" enum:"completed,failed,cancelled"`
}

// LogMessage is one line that a worker sends.
type LogMessage struct {
	Level   string `json:"level" enum:"info,warn,error"`
	Message string `json:"message"`
}

// PostLogs is the body of POST /api/builds/:id/logs: either Logs, or one line
// in Level and Message.
type PostLogs struct {
	Logs    []LogMessage `json:"logs,omitempty"`
	Level   string       `json:"level,omitempty"`
	Message string       `json:"message,omitempty"`
}

// PostedLogs answers POST /api/builds/:id/logs.
type PostedLogs struct {
	Success bool `json:"success" const:"true"`
	// Count is how many lines of a batch were kept.
	Count *int `json:"count,omitempty"`
	// Cancelled is true if the worker has to stop the build, as in the reply to a heartbeat. The lines
	// are kept all the same.
	Cancelled bool `json:"cancelled,omitempty"`
}
