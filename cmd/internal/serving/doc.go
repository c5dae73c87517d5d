// Package serving contains takt serve: it makes the tree and the HTTP server from the settings,
// connects them (wiring.go), and runs them until a signal.
//
// # State
//
// The newest lines of the log, for takt debug bundle. All else belongs to the tree.
//
// # Failure
//
// A tree that gives up ends the process with an error; systemd is notified of an outage.
//
// # Concurrency
//
// The controller belongs to the goroutine of the command. Orders of operators run beside it until
// they have ended.
package serving
