package otp

import "context"

// Async runs f in a goroutine that belongs to this incarnation. Its result
// arrives in HandleInfo. A panic in f is a crash of the process. ctx is
// cancelled, with the reason as cause, as soon as the process is asked to end;
// the process then waits for f to return, as if it were a callback.
func (c *Ctx) Async(f func(ctx context.Context) any) {
	ctx := c.s.softContext()
	c.asyncs.Add(1)
	c.s.p.sys.engine.pool.Schedule(func() {
		defer c.asyncs.Done()
		c.s.runAsync(ctx, f)
	})
}

func (s *server) runAsync(ctx context.Context, f func(ctx context.Context) any) {
	finished := false
	defer func() {
		if finished {
			return
		}
		if value := recover(); !s.p.isKilled() {
			s.p.crash(recovered(value))
		}
	}()
	result := f(ctx)
	finished = true
	s.send(letter{kind: infoLetter, body: result})
}

// softContext returns the context that ends when the process is asked to end.
func (s *server) softContext() context.Context {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.soft == nil {
		s.soft, s.softEnd = context.WithCancelCause(s.p.ctx)
		if s.p.phase >= ending {
			s.softEnd(s.p.reason)
		}
	}
	return s.soft
}
