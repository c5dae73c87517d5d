// Package doctor contains takt doctor, which checks a machine, its settings, a database, and a
// controller as its clients reach it, and takt ready.
//
// # State
//
// None. Only a worker of the check registers with the controller, and is deleted again.
//
// # Failure
//
// What is wrong is a finding with its mending, and fails the command at its end.
//
// # Concurrency
//
// Checks run one after the other, but a stream and a poll at the same time.
package doctor
