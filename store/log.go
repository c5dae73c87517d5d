package store

import "time"

// Level is the severity of a log line.
type Level string

// The levels.
const (
	Info       Level = "info"
	Warn       Level = "warn"
	ErrorLevel Level = "error"
)

// Valid reports whether l is a known level.
func (l Level) Valid() bool { return l == Info || l == Warn || l == ErrorLevel }

// LogLine is one line of a build's log. Seq and At are set by the store.
type LogLine struct {
	// Seq grows within a build. It may have gaps.
	Seq int64
	// Number counts a build's lines from 1, with a gap where lines were left out. It is 0
	// for a line that release 0.1.0 wrote.
	Number  int
	At      time.Time
	Level   Level
	Message string
	// By and Why say who cancelled the build, and why, if the line is about that.
	By, Why string
}

// Text returns the message with who and why.
func (l *LogLine) Text() string { return l.Message + ByWhy(l.By, l.Why) }

// Tail is the new part of a build's log, with the build's state at the same moment.
type Tail struct {
	State BuildState
	Lines []LogLine
	// More is true if there may be further lines.
	More bool
}

// Limits of a build's log.
const (
	// MaxLogHead is how many bytes of a log are stored as they come, and MaxLogTail how
	// many of the newest ones after them are kept while an attempt runs and appended when
	// it ends. LogLineCost is what each line costs in addition to its text.
	MaxLogHead  = 48 << 20
	MaxLogTail  = 16 << 20
	MaxBuildLog = MaxLogHead + MaxLogTail
	LogLineCost = 48
	// MessageLogLimit is the line that follows the first MaxLogHead bytes.
	MessageLogLimit = "The log has reached 48 MiB. Its newest 16 MiB from here are kept apart and follow when this attempt ends."
	// LogPage is about how many bytes of a log are read at once. One line is always
	// read, whatever its length.
	LogPage = 256 << 10
	// LogSearchLines and LogSearchBytes bound what one search for a text reads.
	LogSearchLines = 25_000
	LogSearchBytes = 8 << 20
)

// LogMark is the position in a build's log. It grows with each line and each change of
// the state.
type LogMark struct {
	Seq   int64
	State BuildState
}

// LineKind classifies a line that takt itself wrote into a build's log. Nothing reads
// such a line's text: it is for people. The lines of workers have no kind.
type LineKind string

// The kinds, with the facts that come with each.
const (
	LineSubmitted LineKind = "submitted" // Build, if it retries one
	LineAssigned  LineKind = "assigned"  // worker, attempt
	LineRequeued  LineKind = "requeued"  // worker, attempt, Reason; Error of a worker's fault
	LinePriority  LineKind = "priority"  // From, To
	LineRetried   LineKind = "retried"   // Build
	LineCompleted LineKind = "completed" // worker, attempt
	LineFailed    LineKind = "failed"    // worker, attempt; Reason if no worker reported it
	LineCancelled LineKind = "cancelled" // By, Why
	LineProgress  LineKind = "progress"  // Percent
	LineTelemetry LineKind = "telemetry"
	LineLogLimit  LineKind = "log_limit"
)

// LineFacts are the facts of a line beside its worker and attempt, which have columns of
// their own because making JSON of them would cost each assignment.
type LineFacts struct {
	// Reason is why an attempt was lost, as in Step.Lost, or unassignable for a build that
	// the database refuses to assign. Error is what the worker said.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	// By is who cancelled the build, Why the reason that they gave.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
	// Build is the one that this build retries, or that retries this one.
	Build string `json:"build,omitempty"`
	// From and To are priorities.
	From int `json:"from,omitempty"`
	To   int `json:"to,omitempty"`
	// Percent is how much of the build its worker has done.
	Percent float64 `json:"percent,omitempty"`
}
