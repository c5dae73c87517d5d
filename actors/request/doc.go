// Package request runs each HTTP request as a process of its own, so that a crash
// ends only that request.
//
// # State
//
// The package keeps none. A request's process is a temporary task. Its supervisor is
// that of its pool, a child of request_sup. It runs in the goroutine that serves the
// connection.
//
// # Failure
//
// A panic becomes an error that wraps *otp.PanicError, for that request only.
// While its supervisor restarts, a new request waits up to 1 s and is then refused
// with store.Unavailable. When the supervisor stops, or an operator restarts it, the
// contexts of running requests are cancelled and they return store.Unavailable.
//
// # Concurrency
//
// [Requests] may be used by any goroutine. [Requests.Run] returns only when the
// function has returned, because that function writes to its caller's reply.
package request
