package throttle

import (
	"cmp"
	"time"

	"takt/store"
)

// Config is the throttle's settings. Zero values take the defaults.
type Config struct {
	// Root is the path of the supervisor. Defaults to "takt/throttle".
	Root string

	// FlushRows and FlushDelay bound what ActionBatcher collects while others
	// commit. They default to 500 and 5 ms.
	FlushRows  int
	FlushDelay time.Duration
	// Batches is how many transactions it has under way. Defaults to 2.
	Batches int
	// MaxBuffered is how many actions may wait for their transaction; one more is
	// refused. Defaults to 5000.
	MaxBuffered int

	// CacheTTL is how long a rate may be remembered. Defaults to 5 minutes.
	CacheTTL time.Duration

	// Lease is how long claimed actions belong to a PortalQueue; more than a call
	// to HubSpot takes. Defaults to one and a half times the client's time-out:
	// 45 seconds.
	Lease time.Duration
	// Linger is how long a batch waits for company at most. Defaults to 900 ms.
	Linger time.Duration
	// Ahead is how long before it is back budget is claimed, so that the time of a
	// claim is no loss. A call never goes before its budget is back. Defaults to
	// 100 ms; negative: not at all.
	Ahead time.Duration
	// Idle is how long a PortalQueue without work lingers. Defaults to 10 seconds.
	Idle time.Duration
	// Beat is how often it says that it looks after its queues. Defaults to 10
	// seconds.
	Beat time.Duration
	// Calls is how many calls a portal has under way. Defaults to 8.
	Calls int
	// MaxPortals is how many portals are looked after at once. Defaults to 500.
	MaxPortals int
	// Rule is what failures do. Defaults to holding an action for 30 minutes after
	// 3 failures in a row, and giving it up after 20.
	Rule store.FailureRule

	// RefreshMargin is how long before its end a token is refreshed, but never
	// more than a quarter of its life. Defaults to 5 minutes.
	RefreshMargin time.Duration

	// Snooze is how often a job looks whether its queue has a runner. Defaults to
	// 1 minute.
	Snooze time.Duration
	// Clean is how often queues without a job are looked for. Defaults to 5
	// minutes.
	Clean time.Duration
	// Retention is how long finished actions are kept. Defaults to 30 days.
	Retention time.Duration

	// Timeout bounds one transaction. Defaults to 5 seconds.
	Timeout time.Duration
	// RestartGap is how long callers wait for a restarting actor. Defaults to 1 s.
	RestartGap time.Duration

	call time.Duration // how long a call to HubSpot takes at most
}

func (c Config) withDefaults(call time.Duration) Config {
	c.call = call
	c.Root = cmp.Or(c.Root, "takt/throttle")
	c.FlushRows = cmp.Or(c.FlushRows, 500)
	c.FlushDelay = cmp.Or(c.FlushDelay, 5*time.Millisecond)
	c.Batches = cmp.Or(c.Batches, 2)
	c.MaxBuffered = cmp.Or(c.MaxBuffered, 5000)
	c.CacheTTL = cmp.Or(c.CacheTTL, 5*time.Minute)
	c.Lease = cmp.Or(c.Lease, call+call/2)
	c.Linger = cmp.Or(c.Linger, 900*time.Millisecond)
	c.Ahead = max(cmp.Or(c.Ahead, 100*time.Millisecond), 0)
	c.Idle = cmp.Or(c.Idle, 10*time.Second)
	c.Beat = cmp.Or(c.Beat, 10*time.Second)
	c.Calls = cmp.Or(c.Calls, 8)
	c.MaxPortals = cmp.Or(c.MaxPortals, 500)
	c.Rule = cmp.Or(c.Rule, store.FailureRule{HoldEvery: 3, GiveUp: 20, Hold: 30 * time.Minute})
	c.RefreshMargin = cmp.Or(c.RefreshMargin, 5*time.Minute)
	c.Snooze = cmp.Or(c.Snooze, time.Minute)
	c.Clean = cmp.Or(c.Clean, 5*time.Minute)
	c.Retention = cmp.Or(c.Retention, 30*24*time.Hour)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.RestartGap = cmp.Or(c.RestartGap, time.Second)
	return c
}
