package throttle

import (
	"context"
	"time"

	"takt/actors/otp"
)

// The messages of listen.
type (
	heard       struct{} // cast: the subscription stands; what came before is unknown
	unheard     struct{} // info: it has ended
	listenAgain struct{} // timer
)

// resubscribeDelay is how long pubsub gets to come back.
const resubscribeDelay = 100 * time.Millisecond

// listen has events of the topics cast to the process. A goroutine beside it
// waits for pubsub, so that the process never does.
func listen(c *otp.Ctx, bus Bus, topics ...string) {
	self := c.Self()
	c.Async(func(ctx context.Context) any {
		sub, err := bus.Subscribe(ctx, topics...)
		if err != nil {
			return unheard{}
		}
		defer sub.Close()
		otp.Cast(self, heard{})
		for {
			select {
			case e, ok := <-sub.C():
				if !ok {
					return unheard{}
				}
				otp.Cast(self, e)
			case <-ctx.Done():
				return unheard{}
			}
		}
	})
}
