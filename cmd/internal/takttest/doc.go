// Package takttest runs takt for the end-to-end tests of cmd/internal/e2e: controllers and
// workers as processes, with what tests ask of them. It also finds files of this repository.
//
//	func TestMain(m *testing.M) { takttest.Main(m) }
//
//	env := takttest.NewEnv(t)
//	c := env.StartController("takt")
//	env.StartWorker(c, "one", takttest.CopyOrder)
//	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
//	takttest.Eventually(t, "it is built", func() bool { return takttest.Status(t, c, id).Status == "completed" })
//
// # State
//
// Main makes one directory in memory for a package, and one migrated cluster, of which most
// controllers get a copy.
//
// # Failure
//
// What can't be started fails the test. At the end of a failed test, the end of the logs of its
// processes is printed.
//
// # Concurrency
//
// Each test has an Env of its own, so that tests run in parallel.
package takttest
