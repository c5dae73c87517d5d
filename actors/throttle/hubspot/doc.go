// Package hubspot calls HubSpot: it completes actions that were held back, and
// gets tokens.
//
// # State
//
// A [Client] has a pool of connections and nothing else.
//
// # Failure
//
// Every response is an [Answer], even the HTML of HubSpot's edge servers. A request
// without a response gives an Answer too, because it may have been carried out.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
package hubspot
