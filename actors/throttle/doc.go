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
// ActionBatcher commits actions together and replies to each caller after the commit of its
// action. PortalQueue (handle: [Portals]) serves one portal: it claims as many actions as
// the budgets of the portal's queues allow, from all queues in turn, completes them at
// HubSpot, and records the outcome. The jobs guarantee that some controller serves each queue
// with actions; they do not time the calls. River's client is not in this package: [Jobs]
// configures it. OAuthRefreshLock (handle: [Tokens]) has the portals' OAuth tokens and lets
// one caller at a time refresh a token.
//
// A queue's budget is the number of actions that its rate allows per period. What a call
// spends is available again one period after HubSpot's answer. It is claimed shortly before
// that, so that only the time of the call itself is lost. Parts of a budget that become
// available within a thousandth of the period are merged, and become available with the last
// of them.
//
// # State
//
// PostgreSQL has the actions, the budgets, the rates and the sealed tokens. Memory has cached
// rates (for at most 5 minutes), unsealed tokens, and when each queue is due. All of that may
// be lost at any moment.
//
// # Failure
//
// During an outage of the database, webhooks get Unavailable and periodic work is skipped.
// After it, and after a restart of portal_queue_sup or of River's client, ActionBatcher wakes
// the portals of all queues with actions. If a process dies between claim and record, its
// claim expires: the actions are sent again, and the budget is available one period later.
// HubSpot's rate limits do not count as failures. Other failures pause the portal, hold the
// action, and finally give it up. The dashboard and `takt throttle` show that.
//
// # Concurrency
//
// Handles are safe for concurrent use. Several controllers may work on the same
// queue, because the row locks of claims decide. The pure types (queues, slowStart,
// states) have no clock and no goroutine of their own.
package throttle
