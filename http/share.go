package http

import (
	"sync"

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
