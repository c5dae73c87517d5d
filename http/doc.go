// Package http serves takt's HTTP interface: the wire contract of http/api on
// top of what the store, the storage and the actors can do. It declares the
// small interfaces that it needs (deps.go); cmd/takt plugs the rest in.
//
// A request's way is one row of the table (routes.go): request id and CORS,
// router, key check (memory only), and then who serves the row. Most are levelled:
// the handler runs as a process of [Requests]. What operators need when something
// is broken runs directly. What streams or parks leaves its process, and its
// connection alone waits. Handlers are methods of small structs, one for each
// noun; they return what is replied, or an error, which error.go alone turns into
// a reply and a log line.
//
// # State
//
// None that matters: keys' digests, limits, buffers. The last 10 000 events, for
// GET /api/events, are in a ring of the Server's own: [Server.Publish] is called
// by the subscriber of the bus, so the ring outlives restarts of the endpoint and
// of the bus. Streams read it at their own pace. Streams of logs read rows; memory
// only says when.
//
// # Failure
//
// A panic costs its own request a 500. Whatever is away (database, actors) is
// 503 with Retry-After. A client that breaks off, or that sends more than it
// may, leaves no file and no row. What goes wrong after the first byte of a reply
// aborts the connection, so that nobody takes half a file for a whole one. A
// request that is told to end no longer waits for its client's body; if it has not
// ended after [Config.RequestGrace], its connection is cut off, and nobody writes
// to it any more (cutoff.go).
//
// # Concurrency
//
// A [Server] is used by as many goroutines as there are connections.
// [Server.Serve] may be called again after it returned, also on the same
// listener.
//
// # Why
//
// The listener belongs to the supervision tree and outlives every Serve: a
// restarted endpoint finds the connections that queued up meanwhile. Multipart
// bodies are read part by part and never buffered. The response writer keeps
// ReadFrom, because downloads are left to the kernel (sendfile).
package http
