// Package settings lets an actor apply the settings that operators have saved.
//
// # State
//
// A [Watcher] is a plain value in its actor. It is no process and keeps no copy of the
// settings. PostgreSQL has the truth; the actor keeps what Apply makes of it.
//
// # Failure
//
// The saved settings are read when the actor starts, when a controller notifies that
// it has changed them, and when notifications were missed (listener:resumed). A read
// that fails is tried again each second, and meanwhile the settings in force stay.
// Settings that change during a read are read again, so the settings applied last are
// those saved last.
//
// # Concurrency
//
// A Watcher is used in its actor's callbacks only. Reads and writes run in goroutines of
// their own, so the database never blocks the actor.
package settings
