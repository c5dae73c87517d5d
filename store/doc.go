// Package store is takt's domain: builds, workers, logs and the errors that
// every layer shares. It knows neither SQL nor HTTP and imports the standard
// library only; store/postgres keeps these values, http shows them.
//
// # State
//
// None: plain values. PostgreSQL is the only source of truth.
//
// # Failure
//
// Every failure that a caller may see is an [*Error] with a stable [Code] and a
// message that is safe to show. Everything else is an internal error.
//
// # Concurrency
//
// Values are not shared: copy them.
package store
