// Package controllertest is a build controller for tests of its callers: small,
// in memory, and speaking the real contract over a real socket. Tests bend it
// with [Controller.Intercept] to lose replies, refuse or cut connections.
//
// # State
//
// Builds, workers and tokens of one test, in a map behind a mutex.
//
// # Failure
//
// Requests that break the contract are answered as the real controller would.
// [Controller.Await] fails the test when its condition does not come true.
//
// # Concurrency
//
// All methods may be called from any goroutine.
package controllertest
