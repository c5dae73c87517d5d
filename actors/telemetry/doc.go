// Package telemetry shows what happens in the tree: every supervision event
// becomes one log line, one metric and one event on pubsub, and every subsystem
// registers its figures here.
//
// # State
//
// [Telemetry] holds the metrics registry and a bounded queue of events. Both
// belong to the handle, not to the process that works the queue off, so a
// restart keeps the figures and loses at most the event at hand.
//
// # Failure
//
// Events come from the supervision tree itself, which must never wait: when the
// queue is full an event is dropped and counted
// (takt_supervisor_events_dropped_total).
//
// # Concurrency
//
// Everything may be used by any goroutine.
package telemetry
