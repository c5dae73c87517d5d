// Package tracing makes OpenTelemetry spans: one trace for each build, from the submit to
// its end, and one for every other request or job.
//
// The trace of a build needs no row in the database. Its trace id, the span id of the
// build and those of its attempts are hashes of the build's id, which is random. So each
// controller and worker knows the parent of its spans, restarts lose nothing, and a
// sampler that decides by the trace id decides alike everywhere.
//
// # State
//
// The process has one tracer, as in OpenTelemetry's own API, because every statement and
// every client makes spans. Without one, nothing is recorded and nothing is allocated.
//
// # Failure
//
// Spans never fail the work that they describe. They hold no error messages, because
// these may hold what a client or a database row said.
//
// # Concurrency
//
// Everything may be used by any goroutine.
package tracing
