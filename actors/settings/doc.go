// Package settings keeps in force, in an actor, what operators have saved.
//
// # State
//
// A [Watcher] is a plain value in its actor: no process, no copy of what is
// saved. PostgreSQL has the truth; the actor keeps what Apply makes of it.
//
// # Failure
//
// The saved settings are read when the actor starts, when some controller says
// that it has changed them, and when notifications were missed
// (listener:resumed). A read that fails is tried again each second; until then
// what is in force stays. What has changed while it was being read is read
// again, so the last thing applied is the last thing saved.
//
// # Concurrency
//
// A Watcher is used in its actor's callbacks only. Read and write run beside the
// actor, which is never blocked by the database.
package settings
