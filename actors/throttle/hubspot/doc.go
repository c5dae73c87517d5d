// Package hubspot calls HubSpot: it completes actions that were held back, and
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
package hubspot
