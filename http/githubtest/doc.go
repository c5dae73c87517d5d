// Package githubtest is a stand-in for GitHub, for tests and for the demo. It offers the
// REST calls that takt makes, with real paging, limits and faults. Git requests go to
// real bare repositories, which git's own http-backend serves.
//
// # State
//
// A [Server] keeps its bare repositories in a directory, as ORG/NAME.git, and their REST
// properties in memory.
//
// # Failure
//
// Requests that break GitHub's contract get GitHub's answers. All other faults come from
// a test's [Server.Intercept].
//
// # Concurrency
//
// A [Server] is an http.Handler; its methods may be called from any goroutine.
package githubtest
