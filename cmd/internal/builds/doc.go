// Package builds contains the commands of those who submit builds: submit, list, status, logs,
// download and what changes a build.
//
// # State
//
// None; package cli keeps the tokens of builds.
//
// # Failure
//
// Calls that are safe to repeat are repeated while the controller is unavailable. A build that failed
// has an exit code of its own.
//
// # Concurrency
//
// Each command is one goroutine.
package builds
