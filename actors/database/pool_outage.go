package database

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"takt/actors/otp"
)

// connect returns the work of an attempt to open a pool; nil if one is open.
func (s *poolServer) connect() func(context.Context) (attempt, error) {
	if s.open != nil {
		return nil
	}
	a, cfg := make(attempt, 1), s.cfg
	s.attempt = a
	return func(ctx context.Context) (attempt, error) {
		l, err := connectPool(ctx, cfg)
		a <- outcome{l, err}
		return a, nil
	}
}

// arrived handles the result of an attempt, unless Init has done that.
func (s *poolServer) arrived(c *otp.Ctx, a attempt, _ error) (next time.Duration) {
	select {
	case out := <-a:
		s.conclude(c, out)
	default:
	}
	return 0
}

// conclude handles the result of an attempt: it gives the pool to the sinks, or schedules the
// next attempt.
func (s *poolServer) conclude(c *otp.Ctx, out outcome) {
	s.attempt = nil
	log := c.Logger()
	if out.err != nil {
		wait := s.retryIn(c)
		log.Warn().Err(out.err).Int("attempt", s.failures).Dur("retry_in", wait).Msg("connecting to the database failed; retrying")
		c.Suspend(describe(out.err))
		return
	}
	s.failures, s.waits = 0, waitMeter{}
	s.open = out.open
	for _, sink := range s.cfg.Sinks {
		sink.Use(s.open.pool)
	}
	s.handle.up.Store(&readiness{open: s.open, since: time.Now()})
	c.Resume()
	log.Info().Int("size", s.cfg.Size).Msg("database ready")
}

// check returns the work of a health check; nil without a pool.
func (s *poolServer) check() func(context.Context) (*openPool, error) {
	l := s.open
	if l == nil {
		return nil
	}
	return func(ctx context.Context) (*openPool, error) { return l, l.check(ctx) }
}

// answered handles a check's result. It ignores the result for an earlier pool.
func (s *poolServer) answered(c *otp.Ctx, l *openPool, err error) (next time.Duration) {
	if l != s.open || err == nil {
		return 0
	}
	c.Logger().Warn().Err(err).Msg("database unavailable")
	c.Suspend(describe(err))
	s.takeBack(err)
	// Calls are cut at once, not after Drain: the database has neither answered within
	// AnswerTimeout nor let takt in, and what waits behind a call that hangs would wait also at
	// the next host. Callers of a commit get store.ErrOutcomeUnknown and try again: repeated
	// polls, results and submissions with an Idempotency-Key take effect once.
	l.cut()
	s.retire(c, l, 0)
	if errors.Is(err, errMoved) {
		s.attempts.Start(c)
	} else {
		s.retryIn(c)
	}
	return 0
}

// retryIn schedules the next attempt: after the back-off, or soon while callers need the
// database.
func (s *poolServer) retryIn(c *otp.Ctx) time.Duration {
	wait := s.cfg.Backoff.Wait(s.failures)
	s.failures++
	if time.Now().UnixNano()-s.handle.wanted.Load() < int64(time.Second) {
		wait = min(wait, wantedRetry)
	}
	s.attempts.In(c, wait)
	return wait
}

// hurry moves the next attempt forward, because callers need the database.
func (s *poolServer) hurry(c *otp.Ctx) {
	if s.attempt == nil {
		s.attempts.In(c, wantedRetry)
	}
}

// retire closes a pool in a goroutine; see openPool.close for drain.
func (s *poolServer) retire(c *otp.Ctx, l *openPool, drain time.Duration) {
	log := c.Logger()
	c.Async(func(ctx context.Context) any {
		begun := time.Now()
		l.close(ctx, drain, *log)
		log.Info().Dur("took", time.Since(begun)).Msg("connection pool closed")
		return nil
	})
}

// inherit drops the pool of a previous actor that was killed and so could not do it.
func (s *poolServer) inherit(c *otp.Ctx) {
	if left := s.handle.up.Load(); left != nil {
		s.open = left.open
		s.retire(c, s.takeBack(otp.ErrKilled), s.cfg.Drain)
	}
}

// takeBack drops the pool from its sinks, in reverse order, and returns it.
func (s *poolServer) takeBack(cause error) *openPool {
	s.handle.up.Store(nil)
	l := s.open
	s.open = nil
	for _, sink := range slices.Backward(s.cfg.Sinks) {
		sink.Drop(cause)
	}
	return l
}

// slowWait is how long the mean wait for a connection may be before it is reported.
const slowWait = 50 * time.Millisecond

// waitMeter computes the waits of one interval from the pool's totals.
type waitMeter struct {
	count int64
	total time.Duration
}

// observe returns how many calls waited for a connection since the last observation, their mean
// wait, and whether the pool is too small. In a pool that is not full, calls wait for new
// connections, which a larger pool would not change.
func (m *waitMeter) observe(count int64, total time.Duration, full bool) (n int64, mean time.Duration, small bool) {
	n, took := count-m.count, total-m.total
	m.count, m.total = count, total
	if n <= 0 {
		return 0, 0, false
	}
	mean = took / time.Duration(n)
	return n, mean, full && mean > slowWait
}

// reportWaits logs when the pool was too small in the last second.
func (s *poolServer) reportWaits(c *otp.Ctx) {
	if s.open == nil {
		return
	}
	stat := s.open.pool.Stat()
	calls, mean, small := s.waits.observe(stat.EmptyAcquireCount(), stat.EmptyAcquireWaitTime(), stat.TotalConns() == stat.MaxConns())
	if small {
		log := c.Logger()
		log.Warn().Int64("calls", calls).Dur("mean", mean).Int("size", s.cfg.Size).Msg("calls wait long for a database connection")
	}
}

// describe returns in one line why there is no database. It says so if only an operator can fix
// the reason.
func describe(err error) string {
	switch {
	case refused(err):
		return fmt.Sprintf("the database refuses the login: %v", err)
	case sqlState(err) == stateUnknownDatabase:
		return fmt.Sprintf("the database does not exist: %v", err)
	default:
		return err.Error()
	}
}
