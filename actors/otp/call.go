package otp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Target is what can be called: a [Ref] or a [*Proc].
type Target interface {
	Name() string
	Whereis() *Proc // nil if there is none
}

// Whereis returns p.
func (p *Proc) Whereis() *Proc { return p }

// NoReply is returned by HandleCall when the answer comes later, through
// [From.Reply].
const NoReply = sentinel("no reply")

// answer is what a caller waits for.
type answer struct {
	value any
	err   error
}

// slot is where a caller waits. Slots are reused; round says which call a [From]
// belongs to. It is even while a reply is awaited, and odd afterward. The call belongs
// to the one that moves it from even to odd: the replier, or the caller that gives up.
type slot struct {
	round  atomic.Uint64
	answer chan answer
	timer  *time.Timer
}

// From is the address of a caller. It may be kept and used from any goroutine.
type From struct {
	slot  *slot
	round uint64
}

// Reply answers the call. It never blocks. A second reply is dropped, and so is a
// reply to a caller that has given up.
func (f From) Reply(value any, err error) {
	if f.slot != nil && f.slot.round.CompareAndSwap(f.round, f.round+1) {
		f.slot.answer <- answer{value, err} // has room: one winner per round
	}
}

// Call sends req to the process and waits for the reply. It fails at once with
// a [*DownError] when the process is not there or ends before it replies, with
// [ErrOverload] when its mailbox is full, and with [ErrTimeout] at ctx's deadline
// (without a deadline: after [CallTimeout]). The request is sent at most once; after
// a failure it may or may not have been handled. An error of HandleCall is returned
// unchanged.
func Call[R any](ctx context.Context, t Target, req any) (R, error) {
	value, _, err := call(ctx, t, req)
	return typed[R](t, value, err)
}

// typed converts a reply. No reply at all is the zero value.
func typed[R any](t Target, value any, err error) (R, error) {
	var none R
	if err != nil || value == nil {
		return none, err
	}
	reply, ok := value.(R)
	if !ok {
		return none, fmt.Errorf("calling %s: %w: %T", t.Name(), ErrBadReply, value)
	}
	return reply, nil
}

// call calls the current process of t. sent is false if the request has certainly not
// reached it.
func call(ctx context.Context, t Target, req any) (reply any, sent bool, err error) {
	p := t.Whereis()
	if p == nil {
		return nil, false, &DownError{Name: t.Name(), Reason: ErrNoProc}
	}
	if _, ok := ctx.Deadline(); ok {
		return p.call(ctx, 0, req)
	}
	return p.call(ctx, CallTimeout, req)
}

// Cast sends msg without waiting. It returns false if there is no such process or its
// mailbox is full. After true the message may still be lost, because the process may
// end first.
func Cast(t Target, msg any) bool {
	p := t.Whereis()
	return p != nil && p.server != nil && p.server.send(Msg{Kind: CastMsg, Body: msg}) == posted
}

// call does one call. limit 0: bounded by ctx only.
func (p *Proc) call(ctx context.Context, limit time.Duration, req any) (reply any, sent bool, err error) {
	if p.server == nil || !p.Alive() {
		return nil, false, &DownError{Name: p.Name(), Reason: ErrNoProc}
	}
	s := p.sys.slot(limit)
	defer p.sys.slots.Put(s)
	from := From{slot: s, round: s.round.Load()}
	switch p.server.send(Msg{Kind: CallMsg, From: from, Body: req}) {
	case refused:
		s.settle(from)
		return nil, false, fmt.Errorf("calling %s: %w", p.Name(), ErrOverload)
	case dropped:
		s.settle(from)
		<-p.done // so that its name is free when the caller looks again
		return nil, false, &DownError{Name: p.Name(), Reason: ErrNoProc}
	default:
		reply, err = p.awaitReply(ctx, limit, s, from)
		return reply, true, err
	}
}

// awaitReply waits for the reply, the end of the process, or the end of ctx or
// limit.
func (p *Proc) awaitReply(ctx context.Context, limit time.Duration, s *slot, from From) (any, error) {
	var expired <-chan time.Time
	if limit > 0 {
		expired = s.timer.C
	}
	var err error
	select {
	case a := <-s.answer:
		return s.next(from, a)
	case <-p.done:
		err = &DownError{Name: p.Name(), Reason: p.Reason()}
	case <-ctx.Done():
		err = fmt.Errorf("calling %s: %w", p.Name(), context.Cause(ctx))
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", ErrTimeout, err)
		}
	case <-expired:
		err = fmt.Errorf("calling %s: %w", p.Name(), ErrTimeout)
	}
	if s.settle(from) {
		return nil, err
	}
	return s.next(from, <-s.answer) // a reply came at the last moment
}

// slot returns a free slot, its timer set to limit.
func (s *System) slot(limit time.Duration) *slot {
	free, ok := s.slots.Get().(*slot)
	if !ok {
		free = &slot{answer: make(chan answer, 1), timer: time.NewTimer(time.Hour)}
		free.timer.Stop()
	}
	if limit > 0 {
		free.timer.Reset(limit)
	}
	return free
}

// next prepares the slot for the next round after a reply.
func (s *slot) next(from From, a answer) (any, error) {
	s.timer.Stop()
	s.round.Store(from.round + 2)
	return a.value, a.err
}

// settle ends the round without a reply. It returns false if a reply is there
// or about to come.
func (s *slot) settle(from From) bool {
	if !s.round.CompareAndSwap(from.round, from.round+1) {
		return false
	}
	s.timer.Stop()
	s.round.Store(from.round + 2)
	return true
}
