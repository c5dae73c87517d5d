package throttle

import (
	"cmp"
	"context"
	"errors"
	"time"

	"takt/store"
)

// Config is what tests set. Zero values take the defaults.
type Config struct {
	// MaxBuffered is how many actions may wait for their transaction; one more is
	// refused. Defaults to 5000.
	MaxBuffered int
	// Ahead is how early budget is claimed, so that the time of a claim is no loss.
	// The call still waits until its budget is back. Defaults to 100 ms.
	Ahead time.Duration
	// Idle is how long a PortalQueue without work lingers. Defaults to 10 s.
	Idle time.Duration
	// Calls is how many calls a portal has under way. Defaults to 8.
	Calls int
	// MaxPortals is how many portals are served at once. Defaults to 500.
	MaxPortals int
	// Rule is what failures do. Defaults to holding an action for 30 minutes after
	// 3 failures in a row, and giving it up after 20.
	Rule store.FailureRule
	// Snooze is how often a job sees to it that its queue is served. Defaults to
	// 1 minute.
	Snooze time.Duration

	call  time.Duration // how long a call to HubSpot takes at most
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

// transaction bounds ctx by the time of one transaction.
func transaction(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, transactionTime, errTransactionTooSlow)
}

const persistTries = 5

// persist calls write until it succeeds, a few times. The pause between two tries
// doubles. It ends with ctx.
func persist(ctx context.Context, pause time.Duration, write func() error) (err error) {
	for i := range persistTries {
		if i > 0 && !rest(ctx, pause<<i) {
			break
		}
		if err = write(); err == nil {
			return nil
		}
	}
	return err
}

// rest waits, and reports whether ctx lasted.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
