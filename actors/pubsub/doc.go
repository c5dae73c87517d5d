// Package pubsub carries events between the parts of one takt process: topics,
// and subscribers to them. The listener of package database brings PostgreSQL's
// notifications in, so that controllers learn of each other's changes too.
//
// Events are hints. Whoever acts on one reads the truth from the database, and
// has another way to learn of it in the end.
//
// # State
//
// [Bus] holds the table of subscribers, as an ETS table that publishers read.
// No event is stored: one without a subscriber is gone. The process of Spec
// only removes subscribers that have ended.
//
// # Failure
//
// The table outlives the process, so a restart loses neither a subscriber nor
// an event. A function that panics is logged; its publisher goes on.
//
// # Concurrency
//
// Bus is safe for concurrent use. Publish hands the event over in the
// publisher's goroutine and waits for nobody, so the events of one publisher
// arrive in their order.
package pubsub
