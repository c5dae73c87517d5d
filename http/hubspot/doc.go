// Package hubspot reads what HubSpot sends: it checks signatures, parses calls of
// workflow actions, and knows the replies to them.
//
// # State
//
// It has none.
//
// # Failure
//
// A signature that is missing, wrong or stale is an error that says which; a call
// that can't be taken is a [store.Error] with words for its sender.
//
// # Concurrency
//
// Everything here may be used by any goroutine.
//
// # Why
//
// The rules of the signatures are HubSpot's own and not those of any library:
// version 2 is a plain digest with the secret in front, version 3 decodes twelve
// escapes and no others.
package hubspot
