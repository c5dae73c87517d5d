// Package forge speaks to GitHub, or a GitHub Enterprise Server: its REST
// interface through go-github, its repositories through the git program.
//
// [GitHub] is one forge. [GitHub.Login] gives an [Account]: what can be done
// with one credential. Accounts of the same credential share one budget, so that
// any number of deployments together keep to what the forge allows one user.
//
// # State
//
// Per credential: when repositories were created in the last hour, and until
// when the forge wants to be left alone. It is lost with the process; see
// [Account.Seed]. A mirror lives in a directory of its own below WorkDir, which
// is removed on every path, and by [GitHub.Clean] after a process was killed.
//
// # Failure
//
// A limit is waited for and is no failure, however often it strikes. Answers of
// the 5xx kind and broken connections are tried again with backoff and jitter.
// What is final (401, 403, 404, 422) is an [*Error] whose text is fit for users.
// A git command is bounded in time and ends with its whole process group.
//
// The credential goes to the REST interface as a header, and to git in the
// environment of that one command. It is never in an argument, a URL, a
// configuration file or an error text.
//
// # Concurrency
//
// Everything may be used from any goroutine.
package forge
