// Package runner implements `takt worker`: it polls a controller for builds, runs a command
// on each, and uploads the result.
//
//	poll → download, check, unpack → run → upload → poll …
//	         heartbeat and log stream beside it
//
// worker.go has the loop, and build.go one build from the job to the report. inputs.go decides
// what of the build's parameters and secrets its command gets. command.go starts the command,
// which owner.go gives a user of its own, cgroup_linux.go limits, and image.go a container.
//
// # State
//
// The state directory holds the worker's id and token, so that it comes back as the
// same worker without registering, the number of its last registration, a lock that keeps
// a second worker out, and one directory per running build. Nothing there has to survive:
// the controller is the truth.
//
// # Failure
//
// A build that fails (its command, its archive, its time limit) is reported
// with the last output of the command. A build that is no longer ours, because it
// was cancelled or given to another worker, is stopped and not reported. While the
// controller is unreachable, calls are retried with back-off: results are kept and sent
// when it is back. A command never outlives its build: it runs in a process
// group that is killed as a whole, by a guard process if the worker itself was
// killed.
//
// # Concurrency
//
// One goroutine polls, one sends telemetry and one diagnostic reports; each build has one that drives it, one for the
// heartbeat, one that sends logs and three around the process. [Worker.Drain]
// and [Worker.Report] may be called from anywhere.
package runner
