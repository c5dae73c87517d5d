// Package throttle accepts workflow actions from HubSpot and completes them later, no faster
// than the rates that their owners have set.
//
//	Accept ─▶ ConfigCache ─▶ ActionBatcher ──commit──▶ acknowledged
//	                              │ action, queue, job: one transaction
//	                              ▼
//	          River job ─────▶ PortalQueue ── claim ── send ── record
//	          (a queue with     (one per        spends     │
//	          actions has one)   portal)        budget     └─▶ HubSpot
//
// ActionBatcher commits actions together. It answers each caller after the commit
// of the caller's action. PortalQueue (handle: [Portals]) serves one portal: it claims
// as many actions as the budgets of the portal's queues allow, from all queues in turn,
// completes them at HubSpot, and records the outcome. The jobs guarantee that some
// controller serves each queue with actions; they do not time the calls. River's client is
// not in this package: [Jobs] configures it.
// OAuthRefreshLock (handle: [Tokens]) has the portals' tokens and lets one caller at a
// time refresh a token.
//
// Budget comes back one period after the answer to the call that took it. It is
// claimed shortly before that, so that only the call's own time is lost. Parts of a
// budget that come back within a thousandth of the period are merged, and come back
// with the last part.
//
// # State
//
// PostgreSQL has the actions, the budgets, the rates and the sealed tokens. Memory
// has rates (5 minutes at most), open tokens, and when each queue is due. All of that may be
// lost at any moment.
//
// # Failure
//
// A database that is away is an outage: webhooks are answered Unavailable, timers
// wait. After a restart of portal_queue_sup or of River's client, and after an outage,
// ActionBatcher wakes the portals of all queues with actions. The claim of a process
// that dies between claim and record expires: its actions are sent again, and its
// budget comes back one period later. HubSpot's rate limits do not count as failures.
// Other failures pause the portal, hold the action, and finally give it up. Operators
// can see that.
//
// # Concurrency
//
// Handles are safe for concurrent use. Several controllers may work on the same
// queue, because the row locks of claims decide. The pure types (queues, slowStart,
// states) have no clock and no goroutine of their own.
package throttle
