// Package forge calls GitHub or a GitHub Enterprise Server. It uses go-github for
// the REST interface and the git program for the repositories.
//
// [GitHub] is one forge. [GitHub.Login] returns an [Account] for one credential.
// Accounts of the same credential share one budget, so that all deployments
// together keep to the limits of the forge for one user.
//
// # State
//
// Each credential has a budget: when repositories were created in the last hour,
// and until when the forge allows no calls. It is lost with the process; see
// [Account.Seed]. A mirror lives in a directory of its own below WorkDir, which
// is removed on every path, and by [GitHub.Clean] after a process was killed.
//
// # Failure
//
// A rate limit is no failure: calls wait for its end, however often that happens.
// 5xx answers and broken connections are retried with back-off and jitter. A
// final answer (401, 403, 404, 422) is an [*Error] whose text may be shown to
// users. A git command has a time limit and ends with its whole process group.
//
// REST calls send the credential in a header. A git command gets it in its
// environment. It is never in an argument, a URL, a configuration file or an
// error text.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package forge
