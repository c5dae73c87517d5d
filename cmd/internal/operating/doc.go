// Package operating contains the commands of operators: keys, notices, load levelling, throttle,
// deployments, time-outs, the tree, the audit and the bundle for bug reports.
//
// # State
//
// None.
//
// # Failure
//
// Calls that are safe to repeat are repeated while the controller is unavailable.
//
// # Concurrency
//
// Each command is one goroutine.
package operating
