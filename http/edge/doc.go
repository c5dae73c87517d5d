// Package edge is the outer part of an HTTP server: listener, TLS, deadlines, bodies,
// forms, idempotency keys, limits, errors, replies and streams of events. It has no
// notion of builds, workers or pages. Package http gives it the routes.
//
// A request passes through these steps: request id and CORS, router, key check (memory
// only), and then the serve function of its [Route]: [Server.Levelled], which runs the
// handler as a process of [Requests], or one that runs it directly. Only error.go turns an
// error into a reply and a log line. Limits are in limits.go (how many at once; package limiter says
// who is next), limit_rate.go (how many a second) and limit_keys.go (wrong keys).
//
// # State
//
// Digests of keys, connections, counters of limits. A [Ring] remembers events. None of it
// must survive a restart.
//
// # Failure
//
// A panic fails only its own request, with a 500. An error after the first byte of a reply
// aborts the connection, so that no client takes half a file for a whole one. A request that
// is told to end no longer waits for its client's body. If it has not ended after
// [Config.RequestGrace], its connection is cut off and nothing is written to it any more
// (request.go).
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
package edge
