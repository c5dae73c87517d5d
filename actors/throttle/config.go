package throttle

import (
	"cmp"
	"context"
	"errors"
	"time"

	"takt/store"
	"takt/store/backoff"
)

// Config has the subsystem's settings, which only tests change. Zero values mean the defaults.
type Config struct {
	// MaxBuffered is how many actions may wait for their transaction. Further ones are
	// refused. Defaults to 5000.
	MaxBuffered int
	// Ahead is how early budget is claimed, so that the time of the claim is not lost. The call
	// itself waits until the budget is available. Defaults to 100 ms.
	Ahead time.Duration
	// Idle is how long a PortalQueue without work keeps running. Defaults to 10 s.
	Idle time.Duration
	// Calls is how many calls to HubSpot run at once for one portal. Defaults to 8.
	Calls int
	// MaxPortals is how many portals are served at once. Defaults to 500.
	MaxPortals int
	// Rule says when a failing action is held and given up. Defaults to holding it for 30
	// minutes after every 3 failures, and giving it up after 20.
	Rule store.FailureRule
	// Snooze is how often a job checks that its queue is served. Defaults to 1 minute. If as
	// many portals as may be are served already, it does so after Full, by default 10 s.
	Snooze, Full time.Duration
	// Poll is how often River looks for jobs of queues. Only a queue whose controller has died
	// waits for that, because new actions wake their portals directly. After a full fetch the
	// next one follows immediately. Defaults to 5 s.
	Poll time.Duration
	// Blocked is the pause after HubSpot's edge has refused a call. Defaults to 30 s.
	Blocked time.Duration

	call  time.Duration // the time limit of a call to HubSpot
	lease time.Duration // how long claimed actions belong to a PortalQueue
}

func (c Config) withDefaults(call time.Duration) Config {
	c.call, c.lease = call, call+call/2
	c.MaxBuffered = cmp.Or(c.MaxBuffered, 5000)
	c.Ahead = cmp.Or(c.Ahead, 100*time.Millisecond)
	c.Idle = cmp.Or(c.Idle, 10*time.Second)
	c.Calls = cmp.Or(c.Calls, 8)
	c.MaxPortals = cmp.Or(c.MaxPortals, 500)
	c.Rule = cmp.Or(c.Rule, store.FailureRule{HoldEvery: 3, GiveUp: 20, Hold: 30 * time.Minute})
	c.Snooze = cmp.Or(c.Snooze, time.Minute)
	c.Full = cmp.Or(c.Full, 10*time.Second)
	c.Poll = cmp.Or(c.Poll, 5*time.Second)
	c.Blocked = cmp.Or(c.Blocked, 30*time.Second)
	return c
}

const (
	// root is the path of the supervisor.
	root = "takt/throttle"
	// transactionTime bounds one transaction.
	transactionTime = 5 * time.Second
	// restartGap is how long callers wait for a restarting actor.
	restartGap = time.Second
)

var errTransactionTooSlow = errors.New("transaction exceeded its time limit")

// transaction returns ctx with a limit of transactionTime.
func transaction(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, transactionTime, errTransactionTooSlow)
}

// persistTries is how often persist calls write.
const persistTries = 5

// persist calls write until it succeeds, up to persistTries times, with pauses that double. It
// stops when ctx ends, and returns the last error.
func persist(ctx context.Context, pause time.Duration, write func() error) (err error) {
	for i := range persistTries {
		if i > 0 && backoff.Pause(ctx, pause<<i) != nil {
			break
		}
		if err = write(); err == nil {
			return nil
		}
	}
	return err
}
