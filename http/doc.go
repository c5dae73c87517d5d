// Package http serves takt's HTTP interface: the wire contract of http/api on
// top of what the store, the storage and the actors can do. It declares the
// small interfaces that it needs (deps.go); cmd/takt plugs the rest in.
//
// A request passes through these steps: request id and CORS, router, key check (memory
// only), and then the serve function of its row in the table (routes.go). Most rows are
// levelled: the handler runs as a process of [Requests]. What operators need when
// something is broken runs directly. A stream or a parked poll leaves its process, and
// only its connection waits. Handlers are methods of small structs, one for each noun.
// They return the reply or an error; only error.go turns an error into a reply and a log
// line.
//
// # State
//
// None that must survive a restart: digests of keys, limits, buffers. The last 10 000
// events, for GET /api/events, are in a ring that belongs to the Server. The subscriber
// of the bus calls [Server.Publish], so the ring outlives restarts of the endpoint and of
// the bus. Streams of events read the ring at their own pace. Streams of logs read rows;
// memory only tells them when to read.
//
// # Failure
//
// A panic fails only its own request, with a 500. If the database or an actor is
// unavailable, the reply is 503 with Retry-After. A client that aborts, or that sends
// more than is allowed, leaves no file and no row. An error after the first byte of a
// reply aborts the connection, so that no client takes half a file for a whole one. A
// request that is told to end no longer waits for its client's body. If it has not ended
// after [Config.RequestGrace], its connection is cut off and nothing is written to it any
// more (cutoff.go).
//
// # Concurrency
//
// A [Server] may be used by any number of goroutines; each connection has its own.
// [Server.Serve] may be called again, also on the same listener: a call that returns leaves
// its running requests behind, which [Server.Wait] waits for. [Server.Drain] prepares the
// end of the process.
//
// # Why
//
// The listener belongs to the supervision tree and outlives every Serve, so a restarted
// endpoint finds the connections that queued up meanwhile. Multipart bodies are read part
// by part and never buffered. The response writer keeps ReadFrom, because the kernel
// copies downloads (sendfile).
package http
