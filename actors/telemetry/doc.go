// Package telemetry reports what happens in the tree: every supervision event
// becomes one log line, one metric and one event on pubsub. Every subsystem registers
// its metrics here. [Traces] sends the spans of this process to a collector; [MeasureHost]
// and [MeasureProcesses] show the machine and the tree.
//
// # State
//
// [Telemetry] holds the metrics registry, a bounded queue of events and the newest events.
// They belong to the handle and not to the process that empties the queue, so a restart
// keeps the metrics and loses at most the current event.
//
// # Failure
//
// Events come from the supervision tree itself, which must never wait. When the queue
// is full, an event is dropped and counted (takt_supervisor_events_dropped_total). So are
// spans that the collector does not accept (takt_trace_spans_dropped_total).
//
// # Concurrency
//
// Everything may be used by any goroutine.
package telemetry
