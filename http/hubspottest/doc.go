// Package hubspottest is a stand-in for HubSpot, for tests and demos of takt. It uses
// real HTTP and the real paths, and enforces the rules: it issues tokens only for codes,
// secrets and refresh tokens that it issued itself, accepts completions only with valid
// tokens, refuses batches that HubSpot would refuse, and enforces the rolling limit. It
// fails on request, and records every completion with its time.
//
// # State
//
// [HubSpot] holds portals, tokens, faults and the record, all in memory.
//
// # Failure
//
// Invalid requests get HubSpot's answers. All other failures are faults that a test
// injects.
//
// # Concurrency
//
// All methods may be called from any goroutine.
package hubspottest
