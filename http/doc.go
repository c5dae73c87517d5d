// Package http serves takt's HTTP interface: the wire contract of http/api on
// top of what the store, the storage and the actors can do. It declares the
// small interfaces that it needs (deps.go); cmd/takt plugs the rest in.
//
// The server itself is package edge: connections, limits, errors and replies. This package
// is the table of routes (routes.go) and their handlers, methods of small structs, one for
// each noun. They return the reply or an error. Most rows are levelled: the handler runs as
// a process of [edge.Requests]. What operators need when something is broken runs directly.
// A stream or a poll leaves its process, and only its connection waits.
//
// # State
//
// None that must survive a restart. The last 10 000 events, for GET /api/events, are in a
// ring that belongs to the Server. The subscriber of the bus calls [Server.Publish], so the
// ring outlives restarts of the endpoint and of the bus. Streams of events read the ring at
// their own pace. Streams of logs read rows; memory only tells them when to read.
//
// # Failure
//
// If the database or an actor is unavailable, the reply is 503 with Retry-After. A client
// that aborts, or that sends more than is allowed, leaves no file and no row. The rest is
// edge's.
//
// # Concurrency
//
// A [Server] may be used by any number of goroutines, see [edge.Server].
package http
