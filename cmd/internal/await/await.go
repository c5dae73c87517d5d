// Package await waits on a machine that may be slow. How long something takes says how
// busy the machine is; whether anything moves says if it will ever be done. So a wait has
// no limit but this: it ends when nothing has moved for [Patience].
//
// # Progress
//
// What counts is what the awaited work itself does: states and numbers of builds, lines
// and bytes of a log, rows, files, processor time of a build's command. What happens
// anyway is no progress: heartbeats, the clock, or the processor time of a program that
// answers the questions of the wait itself.
//
// # Failure
//
// A wait in vain says for what it waited, and the progress that it saw last.
package await

import (
	"context"
	"fmt"
	"time"
)

const (
	// Patience is how long a wait goes on while nothing moves.
	Patience = time.Minute

	tick = 20 * time.Millisecond // between two questions whether the condition holds
	look = time.Second           // between two looks at the progress
)

// Until waits until cond holds. what says for what it waits. It ends early with an error
// of cond, with the cause of ctx, and when progress, which is looked at once a second, has
// returned the same text for [Patience]. progress may be nil if there is none to see: then
// the condition has to hold within that time.
func Until(ctx context.Context, what string, progress func() string, cond func(context.Context) (bool, error)) error {
	if progress == nil {
		progress = func() string { return "" }
	}
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	// Looks are counted, not time: a machine that stood still was not looked at.
	var seen string
	var looked time.Time
	for still := -1; ; {
		if ok, err := cond(ctx); ok || err != nil {
			return err
		}
		if time.Since(looked) >= look {
			now := progress()
			if still++; now != seen {
				seen, still = now, 0
			}
			if looked = time.Now(); still >= int(Patience/look) {
				return fmt.Errorf("waited for %s, and nothing moved for %s%s", what, Patience, last(seen))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w%s", what, context.Cause(ctx), last(seen))
		case <-ticks.C:
		}
	}
}

// last is what a message says about the last progress.
func last(seen string) string {
	if seen == "" {
		return ""
	}
	return "; last seen: " + seen
}
