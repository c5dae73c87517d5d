// Package batching commits the items of concurrent callers together, many in one step, and
// isolates an item because of which a step is refused.
//
// # State
//
// A Committer has the items whose callers wait, and nothing else.
//
// # Failure
//
// No caller gets nil before its item is durable. A faulty item fails alone. An outage ends
// the work on a batch at once. A panic in Commit fails the batch, not the process.
//
// # Concurrency
//
// A Committer is safe for concurrent use. A Pace belongs to one goroutine or one lock.
// Isolate calls its functions in the caller's goroutine, one part after the other.
package batching
