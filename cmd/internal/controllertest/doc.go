// Package controllertest is a build controller for tests of its clients. It is small,
// works in memory, and follows the real contract over a real socket. With
// [Controller.Intercept], tests lose replies, refuse requests or cut connections.
//
// # State
//
// A [Controller] holds the builds, workers and tokens of one test, guarded by a mutex.
//
// # Failure
//
// Requests that break the contract get the answer of the real controller.
// [Controller.Await] fails the test when its condition does not come true.
//
// # Concurrency
//
// All methods may be called from any goroutine.
package controllertest
