package edge

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// Share limits how many requests hold something at once, in total and per remote address
// that is not known, so that one client can't take all of it. When all of it is taken,
// the oldest holder of the stranger that holds most is cut off for the next request.
type Share struct {
	name      string
	all, each int

	mu    sync.Mutex // guards what follows
	taken int
	by    map[string][]*Holder // of strangers by address, see quotaAddr; oldest first
}

// Holder is a request. cut, if not nil, cuts it off; it must be quick.
type Holder struct{ cut func(error) }

// NewShare returns a Share of all units, of which each stranger may have each. name is the
// rule that a refusal names.
func NewShare(name string, all, each int) *Share {
	return &Share{name: name, all: all, each: each, by: map[string][]*Holder{}}
}

func (s *Share) full(load, limit int) error {
	return &store.Error{
		Code: store.Overloaded, Message: "Too many requests, try again later",
		Overload: &store.Overload{Rule: s.name, Load: load, Limit: limit},
	}
}

// Take takes one unit for an address, or returns why it can't. The caller must give it
// back. For a known address the holder is nil.
func (s *Share) Take(who string, known bool, cut func(error)) (*Holder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch load := len(s.by[who]); {
	case !known && load >= s.each:
		return nil, s.full(load, s.each)
	case s.taken >= s.all && !s.cutOldest():
		return nil, s.full(s.taken, s.all)
	}
	s.taken++
	if known {
		return nil, nil
	}
	h := &Holder{cut}
	s.by[who] = append(s.by[who], h)
	return h, nil
}

// cutOldest takes a unit away from the stranger that holds most. The caller holds mu.
func (s *Share) cutOldest() bool {
	heaviest, most := "", 0
	for who, holders := range s.by {
		if len(holders) > most {
			heaviest, most = who, len(holders)
		}
	}
	if most == 0 || s.by[heaviest][0].cut == nil {
		return false
	}
	h := s.by[heaviest][0]
	s.remove(heaviest, 0)
	h.cut(s.full(s.all, s.all))
	return true
}

// GiveBack gives back what Take has returned.
func (s *Share) GiveBack(who string, h *Holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h == nil {
		s.taken--
	} else if i := slices.Index(s.by[who], h); i >= 0 { // else it was cut off
		s.remove(who, i)
	}
}

func (s *Share) remove(who string, i int) {
	s.taken--
	if s.by[who] = slices.Delete(s.by[who], i, i+1); len(s.by[who]) == 0 {
		delete(s.by, who)
	}
}

// Within calls f while it holds one unit of sh. If the unit is taken away, the context of
// c's request ends and the client loses its connection.
func (s *Server) Within(sh *Share, c echo.Context, f func() error) error {
	who := s.Addr(c)
	if s.known.has(who, time.Now()) {
		if _, err := sh.Take(who, true, nil); err != nil {
			return err
		}
		defer sh.GiveBack(who, nil)
		return f()
	}
	req, hangUp := c.Request(), hangUp(c)
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	h, err := sh.Take(who, false, func(cause error) {
		cancel(cause)
		hangUp()
	})
	if err != nil {
		return err
	}
	defer sh.GiveBack(who, h)
	c.SetRequest(req.WithContext(ctx))
	defer c.SetRequest(req)
	if err = f(); err != nil {
		if cut, ok := errors.AsType[*store.Error](context.Cause(ctx)); ok {
			return cut
		}
	}
	return err
}

// hangUp returns a function that ends a request's connection, or with HTTP/2 its stream.
// Any goroutine may call it until the request has been answered.
func hangUp(c echo.Context) func() {
	r, reply := c.Request(), http.NewResponseController(c.Response().Writer)
	body, conn := Watched(r), connOf(r.Context())
	return func() {
		if body != nil {
			body.cut()
		}
		_ = reply.SetWriteDeadline(longAgo())
		if r.ProtoMajor < 2 {
			conn.cut()
		}
	}
}

// knownFor is for how long at least an address stays known; at most it is twice as long.
const knownFor = 5 * time.Minute

// known remembers the addresses that have shown a right key, session or signature lately.
// Shares and limits for strangers don't apply to them. Who has no key adds nothing to it.
type known struct {
	mu sync.RWMutex // guards what follows
	// young has the addresses added since turned, old those of the time before.
	young, old map[string]struct{}
	turned     time.Time
}

func newKnown() *known { return &known{young: map[string]struct{}{}} }

func (k *known) has(who string, now time.Time) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, young := k.young[who]
	_, old := k.old[who]
	age := now.Sub(k.turned)
	return young && age < 2*knownFor || old && age < knownFor
}

func (k *known) add(who string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if age := now.Sub(k.turned); age >= knownFor {
		if k.old = k.young; age >= 2*knownFor {
			k.old = nil
		}
		k.young, k.turned = map[string]struct{}{}, now
	}
	if len(k.young) < quotaKeys {
		k.young[who] = struct{}{}
	}
}

// Trust notes that a request has shown a right key, session or signature.
func (s *Server) Trust(c echo.Context, now time.Time) {
	connOf(c.Request().Context()).trust(now)
	if len(s.Config.TrustedProxies) == 0 {
		return
	}
	if who := s.Addr(c); !s.known.has(who, now) { // the connection may be a proxy's
		s.known.add(who, now)
	}
}

// Addr is the remote address of a request as limits count it.
func (s *Server) Addr(c echo.Context) string {
	return quotaAddr(Remote(c.Request(), s.Config.TrustedProxies))
}
