// Package hubspot speaks HubSpot's protocol, in both directions: it checks the signatures of
// calls of workflow actions and parses them, completes the actions that were held back, and
// gets tokens.
//
// # State
//
// A [Client] has a pool of connections and nothing else.
//
// # Failure
//
// A missing, wrong or stale signature is an error that says which. An invalid call is a
// [store.Error] with a message for the sender. Every response is an [Answer], even the HTML of
// HubSpot's edge servers. A request without a response gives an Answer too, because it may have
// been carried out.
//
// # Concurrency
//
// Everything here is safe for concurrent use.
//
// # Why
//
// The rules of the signatures are HubSpot's own, and no library has them: version 2 is a plain
// digest with the secret in front, version 3 decodes twelve escapes and no others.
package hubspot
