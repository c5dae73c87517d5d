// Package pubsub carries events between the parts of one takt process: topics,
// and subscribers that hear them. The listener of package repo brings
// PostgreSQL's notifications in, so that controllers hear each other too.
//
// Events are hints. Whoever acts on one reads the truth from the database, and
// has another way to learn of it in the end.
//
// # State
//
// One actor owns the table of subscribers. Nothing is stored: an event that
// nobody hears is gone. A tap ([Bus.Tap]) hears all, without the actor.
//
// # Failure
//
// When the actor ends, each Subscription's channel is closed; a process that
// called Listen is told, and told again when it hears once more, to read anew
// what it keeps. A subscriber that does not keep up loses its
// subscription in the same way; publishers never wait for it. An event that is
// published while the actor restarts is lost.
//
// # Concurrency
//
// Bus is safe for concurrent use. The events of one publisher arrive in their
// order.
package pubsub
