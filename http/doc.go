// Package http serves takt's HTTP interface: the wire contract of http/api on
// top of what the store, the storage and the actors can do. It declares the
// small interfaces that it needs (deps.go); cmd/takt plugs the rest in.
//
// A request's way: request id and CORS, router, key check (memory only), of a poll
// the signature of its token, then the request actor ([Requests]), inside of which
// build tokens are checked and the handler runs. Routes that operators need when something is
// broken bypass the actor. Handlers return errors; error.go alone turns them
// into replies and log lines.
//
// # State
//
// None that matters: keys' digests, limits, buffers. A poll that parks leaves
// its request actor, and its connection alone waits.
//
// The last 10 000 events, for GET /api/events, are in a ring of the Server's own:
// cmd/takt has the bus call [Server.Publish], whoever publishes. So the ring is no
// process of the tree, outlives restarts of the endpoint and of the bus, and ends
// with the Server. Streams read it at their own pace. Streams of logs read rows;
// memory only tells them when.
//
// # Failure
//
// A panic costs its own request a 500. Whatever is away (database, actors) is
// 503 with Retry-After. A client that breaks off, or that sends more than it
// may, leaves no file and no row. An error after the first byte of a reply
// closes the connection, so that nobody takes half a file for a whole one.
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
