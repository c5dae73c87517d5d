// Package queue hands builds to workers and takes them back from silent ones.
//
// QueueManager (handle: [Queue]) answers all polls that reach this controller. It answers
// or parks a poll from memory if it remembers the worker, the worker holds no build, and no
// build that it could take is pending. All other polls share transactions: while two of
// these run, new polls collect for the next batch. Each build that becomes pending wakes a
// parked poll whose worker can take it: one that the build prefers (because of its cache or
// its labels), or else the oldest.
//
//	poll ──▶ arrive ──▶ judge ──▶ answered or parked, from memory
//	                      │             │ wake
//	                      ▼             ▼
//	                   waiting ──▶ batch ──▶ answered; what found nothing parks
//
// A poll may ask for several builds. It gets a second one of a class only while no other poll
// waits for the class, here or at another controller as far as the database shows.
//
// HeartbeatMonitor (handle: [Monitor]) takes builds from workers that no longer send heartbeats
// for them, takes silent workers offline, and fails builds that no known worker can take. It
// finds suspect workers every 10 s, and a second after a worker has changed. The first it does
// only after this controller could have received heartbeats for one whole build timeout.
//
// # State
//
// QueueManager has worker sessions, polls (waiting, in batches, parked) and counts of
// pending builds. All of it may be lost at any moment. The callers of lost polls then get an
// error at once and their workers poll again. A build that was assigned meanwhile is handed
// out again, because the worker's token shows that the worker did not receive it.
// HeartbeatMonitor knows since when it could receive heartbeats, and has a copy of the timeouts.
// Everything else is in PostgreSQL, and a transaction decides by the rows that it finds,
// even if memory differs.
//
// # Failure
//
// While the database is unavailable, polls that need it fail at once with
// store.Unavailable, parked polls stay parked, and periodic work is skipped. The goroutine
// that committed an assignment also answers the poll, even if the actor has failed.
// Notifications may be lost, so QueueManager reads the database every 2 s, or every 4 s
// while no worker polls here and nothing is pending.
//
// # Concurrency
//
// Handles may be used by any goroutine. Each actor owns its state and uses it only in
// its callbacks; a batch belongs to its goroutine until that sends it back. The decisions
// are in types without clock, goroutines or database (memory, pending, caches, listening);
// the actors only call them.
package queue
