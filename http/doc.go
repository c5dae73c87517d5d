// Package http implements takt's HTTP API, whose types are in http/api, with the
// database, the storage and the actors. It declares the small interfaces that it
// needs (deps.go); cmd/takt supplies the implementations.
//
// Package edge is the server itself: connections, limits, errors and replies. This package
// holds the table of routes (routes.go) and their handlers, which are methods of small
// structs, one for each noun, and return the reply or an error. Most requests are subject to
// load levelling: their handler runs as a process of [edge.Requests]. Routes that operators
// need during an outage bypass it. A stream or a parked poll holds no process, only its
// connection.
//
// # State
//
// None that must survive a restart. The Server keeps the last 10 000 events, for
// GET /api/events, in a ring that outlives restarts of the endpoint and of the bus, whose
// subscriber calls [Server.Publish]. Event streams read the ring at their own pace. Log
// streams read rows from the database; events in memory only trigger the reads.
//
// # Failure
//
// If the database or an actor is unavailable, the reply is 503 with Retry-After. A client
// that aborts, or that exceeds a limit, leaves no file and no row. Package edge handles all
// other errors.
//
// # Concurrency
//
// A [Server] may be used by any number of goroutines, see [edge.Server].
package http
