// Package request runs each HTTP request as a process of its own, so that a crash
// costs that request and nothing else.
//
// # State
//
// None. A request's process is a temporary task under the supervisor of its pool,
// a child of request_sup: the goroutine that serves its connection, for as long as
// the request runs.
//
// # Failure
//
// A panic becomes an error that wraps *otp.PanicError, for that request only.
// While its supervisor restarts, a new request waits up to 1 s and is then refused
// with store.Unavailable. When the supervisor stops, or ops restart it, the
// contexts of running requests are cancelled and their errors say so.
//
// # Concurrency
//
// [Requests] may be used by any goroutine. [Requests.Run] returns only when the
// function has returned, because that function writes to its caller's reply.
package request
