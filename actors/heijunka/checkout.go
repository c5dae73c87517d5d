package heijunka

import (
	"context"
	"time"
)

// checkout returns a slot at now, or later, waiting its turn for one. Errors: an [OverloadError]
// (the line is full or the wait too long), store.Unavailable (the pool has no
// workers), ctx's cause.
func (p *Pool) checkout(ctx context.Context, now time.Duration) (Slot, error) {
	if s, ok := p.lanes.take(now); ok {
		return s, nil
	}
	w, s, full := p.lanes.enter(now)
	switch {
	case full:
		return Slot{}, p.overload(RuleQueue)
	case w == nil:
		return s, nil
	}
	p.lanes.hungry()
	begin, wait := time.Now(), p.h.cfg.Wait
	timer := time.NewTimer(min(p.h.cfg.RestartGap, wait))
	defer timer.Stop()
	for {
		select {
		case s := <-w.ready:
			return s, nil
		case <-ctx.Done():
			if s, mine := p.lanes.leave(w, false); mine {
				s.Return(false)
			}
			return Slot{}, context.Cause(ctx)
		case <-timer.C:
		}
		left := wait - time.Since(begin)
		down := p.lanes.live.Load() == 0
		if left > 0 && !down {
			timer.Reset(min(p.h.cfg.RestartGap, left))
			continue
		}
		if s, mine := p.lanes.leave(w, !down); mine {
			return s, nil
		}
		if down {
			return Slot{}, unavailable("Load levelling is restarting, try again", nil)
		}
		return Slot{}, p.overload(RuleWait)
	}
}

// overload is the refusal of a request that has a token and gets no slot.
func (p *Pool) overload(rule string) error {
	live := int(p.lanes.live.Load())
	waiting := int(p.lanes.waiting.Load())
	if rule == RuleQueue {
		return p.h.overload(rule, waiting, p.lanes.cfg.Queue)
	}
	return p.h.overload(rule, int(p.lanes.busy.Load())+waiting, live)
}
