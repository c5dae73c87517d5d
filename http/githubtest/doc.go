// Package githubtest is a stand-in for GitHub, for tests and for the demo: the
// REST calls that takt makes, with real paging, limits and faults, over real bare
// repositories that git's own http-backend serves.
//
// # State
//
// A directory with a bare repository each, ORG/NAME.git, and what REST says of
// them in memory.
//
// # Failure
//
// Requests that break GitHub's contract are answered as GitHub does. Faults are
// what a test's [Server.Intercept] makes of a request.
//
// # Concurrency
//
// A [Server] is an http.Handler; its methods may be called from any goroutine.
package githubtest
