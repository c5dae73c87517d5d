package otp

import "context"

// Async runs f in a goroutine that belongs to this incarnation. Its result
// arrives in HandleInfo. A panic in f is a crash of the process. ctx is
// cancelled, with the reason as cause, as soon as the process is asked to end;
// the process then waits for f to return, as if it were a callback.
func (c *Ctx) Async(f func(ctx context.Context) any) {
	p, ctx := c.s.p, c.s.p.softContext()
	c.asyncs.Add(1)
	p.sys.engine.pool.Schedule(func() {
		defer c.asyncs.Done()
		p.runAsync(ctx, f)
	})
}

func (p *Proc) runAsync(ctx context.Context, f func(ctx context.Context) any) {
	finished := false
	defer func() {
		if finished {
			return
		}
		if value := recover(); !p.isKilled() {
			p.crash(recovered(value))
		}
	}()
	result := f(ctx)
	finished = true
	p.send(letter{kind: infoLetter, body: result})
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
