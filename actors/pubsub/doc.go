// Package pubsub carries events between the parts of one takt process: topics,
// and subscribers to them. The listener of package database publishes PostgreSQL's
// notifications, so that controllers also get each other's changes.
//
// Events are hints and may be lost. A subscriber that acts on one reads the truth from
// the database, and also reads it at times without an event.
//
// # State
//
// [Bus] holds the table of subscribers, like an ETS table that publishers read. No
// event is stored: an event without a subscriber is lost. The process of Spec removes
// subscribers that have ended and logs panics; publishers do not need it.
//
// # Failure
//
// The table outlives the process, so a restart loses neither a subscriber nor
// an event. A function that panics is logged; its publisher goes on.
//
// # Concurrency
//
// Bus is safe for concurrent use. Publish delivers the event in the publisher's
// goroutine and does not wait for subscribed processes. The events of one publisher
// arrive in order.
package pubsub
