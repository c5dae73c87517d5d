package pubsub

import (
	"context"
	"time"

	"takt/actors/otp"
)

// The messages of Listen, besides Event.
type (
	// Heard says that the subscription stands: what came before is unknown.
	Heard struct{}
	// Unheard says that it has ended: what comes is missed until the next Heard.
	Unheard struct{}
)

// resubscribeDelay is how long pubsub gets to come back.
const resubscribeDelay = 100 * time.Millisecond

// Listen has events of the topics cast to the process that c belongs to, until it
// ends; when the subscription is lost, it makes another. A goroutine beside the
// process waits for pubsub, so that the process never does. It is called in one of
// the process's callbacks.
func (b Bus) Listen(c *otp.Ctx, topics ...string) {
	self := c.Self()
	c.Async(func(ctx context.Context) any {
		again := time.NewTimer(0)
		defer again.Stop()
		for {
			select {
			case <-again.C:
			case <-ctx.Done():
				return nil
			}
			b.carry(ctx, self, topics)
			again.Reset(resubscribeDelay)
		}
	})
}

// carry casts events to a process while one subscription lasts.
func (b Bus) carry(ctx context.Context, to *otp.Proc, topics []string) {
	sub, err := b.Subscribe(ctx, topics...)
	if err != nil {
		return
	}
	defer sub.Close()
	otp.Cast(to, Heard{})
	for {
		select {
		case e, ok := <-sub.C():
			if !ok {
				otp.Cast(to, Unheard{})
				return
			}
			otp.Cast(to, e)
		case <-ctx.Done():
			return
		}
	}
}
