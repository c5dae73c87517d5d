// Package store holds takt's domain types: builds, workers, logs, and the errors
// that all layers share. It contains no SQL and no HTTP, and imports only the
// standard library. Package store/postgres persists these types, package http
// serves them.
//
// # State
//
// None; these are plain values. PostgreSQL is the only source of truth.
//
// # Failure
//
// An error for clients is an [*Error] with a stable [Code] and a message that is
// safe to show. Any other error is internal.
//
// # Concurrency
//
// Values are not safe for concurrent use: copy them.
package store
