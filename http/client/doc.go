// Package client speaks takt's HTTP contract from the caller's side. The
// command line and the build worker share it; the bodies are those of http/api.
//
//	c, err := client.New(client.Config{BaseURL: "http://127.0.0.1:3000", APIKey: key})
//	status, err := c.Status(ctx, id, client.BuildAuth{})
//
// A call is sent once. The caller decides what to repeat, how often and for how long,
// with [Retry]. Only file downloads resume by themselves, because a range request is
// always safe to repeat.
//
// Config.CallTimeout bounds calls without a file. Transfers have no total limit,
// because their duration is unknown. A transfer ends when no byte has moved for
// Config.StallTimeout.
//
// # State
//
// A pool of connections, and the keys, which are never written to errors or logs.
// Redirects are not followed, because net/http would carry the key headers to another
// host.
//
// # Failure
//
// Every reply other than the expected one becomes an [*Error], which wraps a
// [*store.Error] with the code of the reply. If no reply came (refused, reset, timed
// out), the code is store.Unavailable and the status 0. If the caller's context
// ended, the error is its cause instead.
//
// # Concurrency
//
// A Client may be used by any number of goroutines at once.
package client
