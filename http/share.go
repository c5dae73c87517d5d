package http

import (
	"context"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// share limits how many requests hold something at once, in total and per remote address,
// so that one client can't take all of it.
type share struct {
	name      string
	all, each int

	mu    sync.Mutex // guards what follows
	taken int
	by    map[string]int // per address, see quotaAddr
}

func newShare(name string, all, each int) *share {
	return &share{name: name, all: all, each: each, by: map[string]int{}}
}

// take takes one unit for an address, or returns why it can't. The caller must give it
// back.
func (s *share) take(who string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	load, limit := s.taken, s.all
	if s.taken < s.all {
		load, limit = s.by[who], s.each
	}
	if load >= limit {
		return &store.Error{
			Code: store.Overloaded, Message: "Too many requests, try again later",
			Overload: &store.Overload{Rule: s.name, Load: load, Limit: limit},
		}
	}
	s.taken++
	s.by[who]++
	return nil
}

func (s *share) giveBack(who string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.by[who]--; s.by[who] == 0 {
		delete(s.by, who)
	}
}

// within calls f while it holds one unit of sh.
func (s *shared) within(sh *share, c echo.Context, f func() error) error {
	who := s.addr(c)
	if err := sh.take(who); err != nil {
		return err
	}
	defer sh.giveBack(who)
	return f()
}

// addr is the remote address of a request as limits count it.
func (s *shared) addr(c echo.Context) string {
	return quotaAddr(remote(c.Request(), s.cfg.TrustedProxies))
}

// turns limits how many requests of each address run at once; further ones wait.
type turns struct {
	each int

	mu sync.Mutex // guards what follows
	by map[string]*turn
}

type turn struct {
	taken chan struct{} // one token for each running request
	users int           // running and waiting requests
}

func newTurns(each int) *turns { return &turns{each: each, by: map[string]*turn{}} }

// turnTimeout is how long a request waits for its turn.
const turnTimeout = 10 * time.Second

// take waits for a turn of an address. The caller must give it back.
func (t *turns) take(ctx context.Context, who string) error {
	t.mu.Lock()
	own := t.by[who]
	if own == nil {
		own = &turn{taken: make(chan struct{}, t.each)}
		t.by[who] = own
	}
	own.users++
	t.mu.Unlock()
	select {
	case own.taken <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(turnTimeout)
	defer timer.Stop()
	select {
	case own.taken <- struct{}{}:
		return nil
	case <-timer.C:
		t.leave(who)
		return &store.Error{
			Code: store.Overloaded, Message: "Too many uploads from this address, try again later",
			Overload: &store.Overload{Rule: "uploads of an address", Load: t.each, Limit: t.each},
		}
	case <-ctx.Done():
		t.leave(who)
		return context.Cause(ctx)
	}
}

func (t *turns) giveBack(who string) {
	t.mu.Lock()
	own := t.by[who]
	t.mu.Unlock()
	<-own.taken
	t.leave(who)
}

func (t *turns) leave(who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own := t.by[who]; own.users > 1 {
		own.users--
	} else {
		delete(t.by, who)
	}
}
