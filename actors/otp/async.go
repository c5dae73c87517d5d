package otp

import (
	"context"
	"sync"
	"time"
)

// asyncs are the helper goroutines of one incarnation.
type asyncs struct {
	mu     sync.Mutex // guards what follows
	count  int
	idle   chan struct{} // made by wait, closed when count is 0
	leaked bool          // wait has given up
}

// Async runs f in a goroutine that belongs to this incarnation. Its result
// arrives in HandleInfo. A panic in f is a crash of the process. ctx is
// cancelled, with the reason as cause, as soon as the process is asked to end;
// the process then waits for f to return.
func (c *Ctx) Async(f func(ctx context.Context) any) {
	p := c.s.p
	if c.asyncs == nil {
		c.asyncs = &asyncs{}
	}
	a := c.asyncs
	a.mu.Lock()
	a.count++
	a.mu.Unlock()
	ctx := p.softContext()
	p.sys.engine.pool.Schedule(func() { a.run(ctx, p, f) })
}

func (a *asyncs) run(ctx context.Context, p *Proc, f func(ctx context.Context) any) {
	finished := false
	var result any
	defer func() {
		if finished {
			p.box.post(letter{kind: infoLetter, body: result})
		} else if value := recover(); !p.isKilled() {
			p.crash(recovered(value))
		}
		a.leave(p)
	}()
	result = f(ctx)
	finished = true
}

func (a *asyncs) leave(p *Proc) {
	a.mu.Lock()
	a.count--
	if a.count == 0 && a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
	leaked := a.leaked
	a.mu.Unlock()
	if leaked {
		p.sys.strays.Add(-1)
	}
}

// wait returns when all goroutines have returned, or the process is killed: then
// what still runs after the system's KillGrace counts as leaked until it returns.
func (a *asyncs) wait(p *Proc) {
	if a == nil {
		return
	}
	a.mu.Lock()
	if a.count == 0 {
		a.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	a.idle = idle
	a.mu.Unlock()

	select {
	case <-idle:
		return
	case <-p.ctx.Done():
	}
	grace := time.NewTimer(p.sys.opts.KillGrace)
	defer grace.Stop()
	select {
	case <-idle:
		return
	case <-grace.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaked = true
	p.sys.strays.Add(int64(a.count)) // those that left meanwhile are not in count
}

// softContext returns the context that ends when p is asked to end.
func (p *Proc) softContext() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.soft == nil {
		p.soft, p.softEnd = context.WithCancelCause(p.ctx)
		if p.phase >= ending {
			p.softEnd(p.reason)
		}
	}
	return p.soft
}
