// Package client speaks takt's HTTP contract from the caller's side. The
// command line and the build worker share it; the bodies are those of http/api.
//
//	c, err := client.New(client.Config{BaseURL: "http://127.0.0.1:3000", APIKey: key})
//	status, err := c.Status(ctx, id, client.BuildAuth{})
//
// Calls do one thing once. What may be repeated, how often and how long is the
// caller's decision, made with [Retry]; only the file downloads resume by
// themselves, because a range request is always safe to repeat.
//
// Calls without a file are bounded by Config.CallTimeout. Transfers have no
// total limit, since nobody knows how long a gigabyte takes, but one of which
// no byte moves for Config.StallTimeout is ended.
//
// # State
//
// A pool of connections, and the keys, which are never written to errors or
// logs. Redirects are not followed: net/http would carry the key headers to
// another host.
//
// # Failure
//
// Every reply other than the expected one becomes an [*Error], which wraps a
// [*store.Error] with the code of the reply. No reply at all (refused, reset,
// timed out) is store.Unavailable with status 0. When the caller's context
// ended, its cause is returned instead.
//
// # Concurrency
//
// A Client may be used by any number of goroutines at once.
package client
