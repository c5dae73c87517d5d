// Package hubspot speaks HubSpot's side of workflow actions: it checks the
// signatures of what HubSpot sends, reads it, completes what was held back, and
// gets tokens.
//
// # State
//
// A [Client] has a pool of connections and nothing else.
//
// # Failure
//
// What HubSpot answers is an [Answer], whatever it is; edge servers say HTML. A
// request without an answer is one too: it may have been carried out.
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
