// Package otlp sends traces of a controller or a worker to a collector.
//
// # State
//
// None; see package telemetry.
//
// # Failure
//
// An unusable address is an error at the start. A collector that is away costs spans only.
//
// # Concurrency
//
// As in package telemetry.
package otlp
