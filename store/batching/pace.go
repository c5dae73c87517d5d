package batching

import (
	"cmp"
	"math"
	"time"
)

// Pace decides when the next batch starts and how many items it takes. While batches run,
// further items collect. The zero value runs one batch at a time, of any size and without
// delay. A Pace belongs to one Committer or one actor.
type Pace struct {
	// Parallel is how many batches run at once. Defaults to 1.
	Parallel int
	// Most is how many items one batch has at most. Defaults to any number.
	Most int
	// Least is what a batch may take even if that is more than its share of the items.
	// While the database works on one batch, the callers of another are answered and bring
	// their next items. So batches of about equal size are best. Defaults to Most.
	Least int
	// Linger is how long a batch smaller than its share waits at most for more items while
	// another batch runs. Return is the same while none runs, because callers that were
	// just answered soon bring their next item. Both default to 0.
	Linger, Return time.Duration
	// More than Few and up to Alone items all share one batch, because each batch costs the
	// database much besides its items. A second one starts only if the first takes longer than
	// four times Linger. Few items don't wait for Return. Both default to 0.
	Few, Alone int

	running int // batches
	items   int // in them
	crowd   int // how many items lately were in batches or waiting
}

// Next returns how many of the waiting items start as a batch now, to which the caller
// keeps. If that is 0 and wait is not, it is asked again when more items wait, when a batch
// has ended, or after wait with late set.
func (p *Pace) Next(waiting int, late bool) (n int, wait time.Duration) {
	p.crowd = max(p.crowd, p.items+waiting)
	parallel, most := p.parallel(), cmp.Or(p.Most, math.MaxInt)
	switch {
	case waiting == 0 || p.running >= cmp.Or(p.Parallel, 1):
		return 0, 0
	case p.running >= parallel && !late:
		return 0, 4 * p.Linger
	}
	share := (p.crowd + parallel - 1) / parallel
	if wait = p.Return; p.running > 0 {
		wait = p.Linger
	} else if p.crowd <= p.Few {
		wait = 0
	} else if late && waiting < share/2 { // in vain
		p.crowd = waiting
	}
	if wait > 0 && !late && waiting < min(most, share*7/8) {
		return 0, wait
	}
	n = min(waiting, p.limit())
	p.running++
	p.items += n
	p.crowd = max(p.items+waiting-n, p.crowd-(p.crowd+7)/8)
	return n, 0
}

// Join returns how many of the waiting items a batch of n still takes that is about to run.
func (p *Pace) Join(waiting, n int) (more int) {
	more = max(0, min(waiting, p.limit()-n))
	p.items += more
	return more
}

// limit is how many items a batch takes now.
func (p *Pace) limit() int {
	most, parallel := cmp.Or(p.Most, math.MaxInt), p.parallel()
	return min(most, max((p.crowd+parallel-1)/parallel, cmp.Or(p.Least, most)))
}

// parallel is how many batches may run at once now.
func (p *Pace) parallel() int {
	if p.Few < p.crowd && p.crowd <= p.Alone {
		return 1
	}
	return cmp.Or(p.Parallel, 1)
}

// Ended notes that a batch of n items has ended.
func (p *Pace) Ended(n int) {
	p.running--
	p.items -= n
}
