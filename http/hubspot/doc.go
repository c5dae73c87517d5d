// Package hubspot reads HubSpot's requests: it checks signatures, parses calls of
// workflow actions, and defines the replies to them.
//
// # State
//
// None.
//
// # Failure
//
// A missing, wrong or stale signature is an error that says which. An invalid call is
// a [store.Error] with a message for the sender.
//
// # Concurrency
//
// Everything here may be used by any goroutine.
//
// # Why
//
// The rules of the signatures are HubSpot's own, and no library has them: version 2
// is a plain digest with the secret in front, version 3 decodes twelve escapes and no
// others.
package hubspot
