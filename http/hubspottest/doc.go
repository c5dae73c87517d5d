// Package hubspottest is a HubSpot to test and show takt with: real HTTP, the real
// paths, and the rules enforced. It gives tokens only for codes, secrets and
// refresh tokens that it gave itself, completes only for tokens that are still
// good, refuses batches that HubSpot would refuse, keeps the rolling limit, and
// fails on demand. It records every completion with its time.
//
// # State
//
// [HubSpot] has portals, tokens, faults and the record, all in memory.
//
// # Failure
//
// What it is asked for wrongly it answers as HubSpot does. Faults are those that
// a test injects, no others.
//
// # Concurrency
//
// All methods may be used by any goroutine.
package hubspottest
