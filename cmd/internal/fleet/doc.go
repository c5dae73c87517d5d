// Package fleet contains the commands for workers: takt worker, which runs builds, takt workers, and
// takt top.
//
// # State
//
// A worker's own key, in its state directory or in a file that only root can read.
//
// # Failure
//
// See package runner. takt top shows the last state that it knows, and why there is no newer one.
//
// # Concurrency
//
// takt top belongs to one goroutine; others send it functions.
package fleet
