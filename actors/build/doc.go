// Package build hands builds to workers and takes them back from silent ones.
//
// QueueManager (handle: [Queue]) serves every poll of every worker of this
// controller. Polls collect while at most two transactions run; the next one
// serves all that have come together: group commit. Polls that wait for a build
// park here, and each build that becomes pending wakes the one that has been
// parked longest of those that can take it.
//
//	          supersedes, blocks               answers
//	poll ──▶ line ──────────────▶ flight ─────────────────▶ worker
//	          ▲                     │ nothing to do yet
//	          └──── wakes ◀── room ◀┘
//
// HeartbeatMonitor (handle: [Monitor]) sweeps up builds whose workers have gone
// silent, but only after this controller could have heard them for one whole
// build timeout.
//
// # State
//
// QueueManager: polls in the line, in flight and parked, and hints of how many
// builds are pending. All of it may be lost at any moment: the callers of lost
// polls learn of it at once and their workers poll again; a build that was
// assigned meanwhile is handed out again. HeartbeatMonitor: since when it
// listens, and a copy of the timeouts. PostgreSQL has everything else.
//
// # Failure
//
// A database that is away is weather: polls that need it fail at once with
// store.Unavailable, parked ones stay, timers skip their turn. A transaction
// that fails for another reason is halved until the poll that it fails for is
// alone. A committed assignment is answered by the goroutine that committed it,
// whatever happens to the actor. Notifications may be lost: a count every 2 s
// finds what they did not tell.
//
// # Concurrency
//
// Handles may be used by any goroutine. Each actor owns its state and touches it
// in its callbacks only; what a batch shares with it is handed over and back by
// messages. The decisions are in types without clock, goroutines or database
// (board, line, room, hints, listening), which the actors are thin shells of.
package build
