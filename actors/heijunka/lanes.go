package heijunka

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"takt/actors/otp"
)

// lanes are a pool's lanes and those who wait for one. They belong to the
// handle: the pool's actors come and go.
type lanes struct {
	cfg  PoolConfig
	born time.Time
	// hungry tells the manager that requests wait, orphaned that a worker
	// crashed. Neither blocks.
	hungry, orphaned func()

	// For those who choose between pools: lanes with a worker, lanes that are
	// held, requests that wait.
	live, busy, waiting atomic.Int64

	mu     sync.Mutex // guards what follows
	all    map[*lane]struct{}
	idle   []*lane // last returned last
	line   waiters
	size   sizing
	window window
	nextID uint64
	total  totals
}

// totals count since the start of takt.
type totals struct {
	taken, ended, failed int64
	refused, expired     int64 // the line was full; the wait was too long
	crashed              int64 // workers
	peak                 int   // most waiters
}

func newLanes(cfg PoolConfig, window time.Duration, born time.Time) *lanes {
	return &lanes{
		cfg: cfg, born: born, hungry: func() {}, orphaned: func() {},
		all:    map[*lane]struct{}{},
		size:   sizing{min: cfg.Min, max: cfg.Max, base: cfg.Initial, overflow: cfg.Overflow},
		window: newWindow(window),
	}
}

func (p *lanes) now() time.Duration { return time.Since(p.born) }

// utilisation is the share of lanes that are held; 1 if there are none.
func (p *lanes) utilisation() float64 {
	live := p.live.Load()
	if live == 0 {
		return 1
	}
	return min(float64(p.busy.Load())/float64(live), 1)
}

// demand is who works or waits per worker.
func (p *lanes) demand() float64 {
	return float64(p.busy.Load()+p.waiting.Load()) / float64(max(p.live.Load(), 1))
}

// take returns a free lane, the one that was free the shortest, without waiting.
func (p *lanes) take(now time.Duration) (Slot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.idle)
	if n == 0 {
		return Slot{}, false
	}
	l := p.idle[n-1]
	p.idle = p.idle[:n-1]
	return p.hold(l, now), true
}

// hold gives a lane that is not in idle to a holder.
func (p *lanes) hold(l *lane, now time.Duration) Slot {
	p.busy.Add(1)
	p.total.taken++
	return l.take(now)
}

// enter puts a waiter into the line, unless it is full or there is a lane after
// all.
func (p *lanes) enter(now time.Duration) (w *waiter, s Slot, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		l := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return nil, p.hold(l, now), false
	}
	if p.line.n >= p.cfg.Queue {
		p.total.refused++
		return nil, Slot{}, true
	}
	w = &waiter{ready: make(chan Slot, 1)}
	p.line.add(w)
	p.total.peak = max(p.total.peak, p.line.n)
	p.waiting.Store(int64(p.line.n))
	return w, Slot{}, false
}

// leave takes a waiter out of the line that has given up. If a lane was handed
// to it meanwhile, that is its: no lane is lost.
func (p *lanes) leave(w *waiter, expired bool) (Slot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.line.remove(w) {
		return <-w.ready, true
	}
	p.waiting.Store(int64(p.line.n))
	if expired {
		p.total.expired++
	}
	return Slot{}, false
}

// bind says how the context of s's holder is ended when its worker crashes; at
// once, if it has.
func (p *lanes) bind(s Slot, end context.CancelCauseFunc) {
	p.mu.Lock()
	lost := s.lane.lost
	s.lane.end = end
	p.mu.Unlock()
	if lost {
		end(errLaneLost)
	}
}

// giveBack frees the lane of s. It reports whether that was still to be done,
// and whether the worker crashed meanwhile.
func (p *lanes) giveBack(s Slot, failed bool) (was, lost bool) {
	now := p.now()
	p.mu.Lock()
	l := s.lane
	if !l.busy || l.round != s.round {
		p.mu.Unlock()
		return false, false
	}
	lost = l.lost
	failed = failed || lost
	l.busy, l.end = false, nil
	l.served++
	p.total.ended++
	if failed {
		l.failed++
		p.total.failed++
	}
	p.window.add(now, now-l.since, failed)
	p.busy.Add(-1)
	gone := p.free(l, now)
	p.mu.Unlock()
	if gone != nil {
		gone.Exit(otp.ErrShutdown)
	}
	return true, lost
}

// free does with a lane that nobody holds what is to be done: next waiter, idle,
// or gone. It returns the worker that is to end.
func (p *lanes) free(l *lane, now time.Duration) (gone *otp.Proc) {
	switch {
	case l.proc == nil:
		delete(p.all, l)
	case l.leaving:
		return p.drop(l)
	case p.line.n > 0:
		w := p.line.first()
		p.waiting.Store(int64(p.line.n))
		w.ready <- p.hold(l, now)
	default:
		l.since = now
		p.idle = append(p.idle, l)
	}
	return nil
}

// drop removes a lane that is neither held nor idle and returns its worker.
func (p *lanes) drop(l *lane) (gone *otp.Proc) {
	delete(p.all, l)
	gone = l.proc
	if l.proc != nil {
		l.proc = nil
		p.live.Add(-1)
	}
	return gone
}

// up gives a lane its worker: a new lane, or one whose worker was stopped under
// a request. It returns false if the lane is not wanted any more.
func (p *lanes) up(l *lane, proc *otp.Proc) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.id == 0 {
		p.nextID++
		l.id = p.nextID
		p.all[l] = struct{}{}
	} else if !l.busy || l.proc != nil && l.proc.Alive() {
		return false
	}
	if l.proc == nil {
		p.live.Add(1)
	}
	l.proc, l.leaving = proc, false
	if !l.busy {
		p.free(l, p.now())
	}
	return true
}

// down takes a worker's end into account. A crash costs the request that holds
// the lane; an orderly end does not.
func (p *lanes) down(l *lane, proc *otp.Proc, crash bool) {
	p.mu.Lock()
	if crash {
		p.total.crashed++
	}
	if l.proc != proc {
		p.mu.Unlock()
		return // it was told to go, or has a successor already
	}
	l.proc = nil
	p.live.Add(-1)
	l.lost = crash
	end := l.end
	if !l.busy {
		delete(p.all, l)
		for i, other := range p.idle {
			if other == l {
				p.idle = append(p.idle[:i], p.idle[i+1:]...)
				break
			}
		}
	}
	p.mu.Unlock()
	if crash && end != nil {
		end(errLaneLost)
	}
	if crash {
		p.orphaned()
	}
}

// orphans are the lanes that are held and have no worker, to be given one.
func (p *lanes) orphans() (all []*lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.all {
		if l.busy && (l.proc == nil || !l.proc.Alive()) {
			all = append(all, l)
		}
	}
	return all
}

// missing is how many workers are to be started: up to the target, and beyond it
// for those who wait.
func (p *lanes) missing() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	live, target := p.staying(), p.size.target()
	if live < target {
		return target - live
	}
	return max(0, min(p.line.n, target+p.size.overflow-live))
}

// staying counts the workers that are not about to go.
func (p *lanes) staying() int {
	n := 0
	for l := range p.all {
		if l.proc != nil && !l.leaving {
			n++
		}
	}
	return n
}

// retire returns workers that are to end: n of those above the target at once,
// held lanes when they are free; and idle ones above the target that have been
// idle for longer than linger.
func (p *lanes) retire(n int, linger time.Duration) (gone []*otp.Proc) {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	spare := p.staying() - p.size.target()
	for len(p.idle) > 0 && spare > 0 && (n > 0 || now-p.idle[0].since > linger) {
		l := p.idle[0] // idle for the longest
		p.idle = p.idle[1:]
		gone = append(gone, p.drop(l))
		n, spare = n-1, spare-1
	}
	for l := range p.all {
		if n <= 0 || spare <= 0 {
			break
		}
		if l.busy && l.proc != nil && !l.leaving {
			l.leaving = true
			n, spare = n-1, spare-1
		}
	}
	return gone
}

// workers lists the workers with their lanes.
func (p *lanes) workers() map[*otp.Proc]*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[*otp.Proc]*lane, len(p.all))
	for l := range p.all {
		if l.proc != nil {
			all[l.proc] = l
		}
	}
	return all
}

// resize changes the size under the pool's mutex.
func (p *lanes) resize(change func(s *sizing)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.size)
}
