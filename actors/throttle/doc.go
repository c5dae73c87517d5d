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
// ActionBatcher commits actions together and answers each caller after the commit
// that has its action. PortalQueue (handle: [Portals]) claims what a queue's budget
// allows, from all of a portal's queues in turn, tells HubSpot, and records what came
// of it. Budget comes back one period after the answer to the call that took it; it
// is claimed a moment before, so that only the call's own time is lost; what would come
// back within a thousandth of the period is merged in time, and comes back with the
// last of it. The jobs are the guarantee that a queue with actions has a PortalQueue
// somewhere; they are no clock.
// OAuthRefreshLock (handle: [Tokens]) has each portal's token, refreshed by one at a
// time. JobBatcher inserts jobs that need not be unique.
//
// # State
//
// PostgreSQL has the actions, the budgets, the rates and the sealed tokens. Memory
// has rates (5 minutes at most), open tokens, and when each queue is due; all of it
// may be lost at any moment.
//
// # Failure
//
// A database that is away is an outage: webhooks are answered Unavailable, timers
// wait, River's client is stopped and built anew with the next pool. A process that
// dies between claim and record leaves a claim that ends by itself: its actions are
// sent again, and its budget comes back one period later. HubSpot's rate limits are
// no failures; other failures pause the portal, hold the action and, in the end,
// give it up, visibly.
//
// # Concurrency
//
// Handles may be used by any goroutine. Several controllers may work on the same
// queue: the row locks of claims decide. What is pure (queues, breaker, seals) has
// no clock and no goroutine of its own.
package throttle
