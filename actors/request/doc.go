// Package request runs each HTTP request in a process of its own, so that a
// crash costs that request and nothing else.
//
// # State
//
// None. A request's process is a temporary task under request_sup: a goroutine
// that ends with the request and is never restarted.
//
// # Failure
//
// A panic becomes an error that wraps *otp.PanicError, for that request only.
// While request_sup restarts, new requests wait up to 1 s and are then refused
// with store.Unavailable. When it stops, or ops restart it, the contexts of
// running requests are cancelled and their errors say so.
//
// # Concurrency
//
// [Requests] may be used by any goroutine. [Requests.Do] returns only when the
// function has returned, because that function writes to its caller's reply.
package request
