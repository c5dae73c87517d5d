package database

import (
	"context"

	"takt/actors/otp"
)

// goroutines runs functions as goroutines of the incarnation. A panic in one crashes the
// actor, and the actor waits for all of them.
func goroutines(c *otp.Ctx) spawn {
	return func(f func()) {
		c.Async(func(context.Context) any {
			f()
			return nil
		})
	}
}

// untilStop returns a context for a callback that takes long. The context ends as soon as
// the actor is asked to stop, while the actor's own context ends only at the hard
// deadline. The callback calls release at its end.
func untilStop(c *otp.Ctx) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(c.Context())
	c.Async(func(soft context.Context) any {
		select {
		case <-soft.Done():
			cancel(context.Cause(soft))
		case <-ctx.Done():
		}
		return nil
	})
	return ctx, func() { cancel(nil) }
}
