// Package throttle takes workflow actions from HubSpot and completes them at the
// rates that their owners have set.
//
//	Accept ─▶ ConfigCache ─▶ ActionBatcher ──commit──▶ acknowledged
//	                              │ action, queue, job: one transaction
//	                              ▼
//	          River job ─────▶ PortalQueue ── claim ── send ── record
//	          (a queue with     (one per        spends     │
//	          actions has one)   portal)        budget     └─▶ HubSpot
//
// ActionBatcher commits actions together. It answers each caller after the commit
// that has its action. PortalQueue (handle: [Portals]) serves a portal: it claims what
// the budgets of the portal's queues allow, from all of them in turn, completes it at
// HubSpot, and records the outcome. The jobs guarantee that each queue with actions is
// served somewhere; they are no clock. OAuthRefreshLock (handle: [Tokens]) has the
// portals' tokens and lets one caller at a time refresh a token. JobBatcher inserts
// jobs that need not be unique.
//
// Budget comes back one period after the answer to the call that took it. It is
// claimed a moment before, so that only the call's own time is lost. Budget that would
// come back within a thousandth of the period is merged, and comes back with its last
// part.
//
// # State
//
// PostgreSQL has the actions, the budgets, the rates and the sealed tokens. Memory
// has rates (5 minutes at most), open tokens, and when each queue is due. It may be
// lost at any moment.
//
// # Failure
//
// A database that is away is an outage: webhooks are answered Unavailable, timers
// wait, River's client is stopped and built anew with the next pool. A process that
// dies between claim and record leaves a claim that ends by itself: its actions are
// sent again, and its budget comes back one period later. HubSpot's rate limits are
// no failures. Other failures pause the portal, hold the action, and give it up in
// the end, visibly.
//
// # Concurrency
//
// Handles may be used by any goroutine. Several controllers may work on the same
// queue: the row locks of claims decide. What is pure (queues, breaker, seals) has
// no clock and no goroutine of its own.
package throttle
