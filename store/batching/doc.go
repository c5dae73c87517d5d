// Package batching does many items in one step, and finds the item because of which the
// step is refused.
//
// # State
//
// None outlives a call.
//
// # Failure
//
// A faulty item fails alone. An outage ends the work at once.
//
// # Concurrency
//
// Isolate calls its functions in the caller's goroutine, one part after the other.
package batching
