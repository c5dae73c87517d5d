package http

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/store"
	"takt/store/metrics"
)

// shared is what all handlers have in common.
type shared struct {
	cfg      Config
	log      zerolog.Logger
	metrics  serverMetrics
	observed *metrics.Metrics
	requests Requests

	inFlight atomic.Int64 // requests under way, parked polls included
	draining atomic.Bool
	idle     chan struct{} // gets a token when nothing is in flight any more while the server drains
	wrong    *wrongKeys
	known    *known
	streams  chan struct{} // one for each stream of events
	// strangers counts the admitted requests of public routes. bodies counts those whose
	// body is being read before admission.
	strangers, bodies *share
	pages, orders     *share // requests that are not levelled: the public ones and the operators'
	// transfers are those that show a right key. guests are downloads that show only a
	// build's token; perBuild counts them.
	transfers, guests *turns
	// uploads are bodies of other requests with a right key that are not small.
	uploads  *turns
	perBuild *share
	jsonType []string // the Content-Type of all JSON; never changed
}

// wrap adds the common steps of all routes to a route's handler.
func (s *Server) wrap(r *route, method string) echo.HandlerFunc {
	m := s.metrics.of(r, method)
	return func(c echo.Context) error {
		start := time.Now()
		m.running.Inc()
		defer func() { m.ended(c.Request().Context(), c.Response(), time.Since(start)) }()
		body := s.watchBody(c, r)
		conn := http.NewResponseController(c.Response().Writer)
		c.Response().Before(func() {
			moveWriteDeadline(conn)
			if s.draining.Load() {
				c.Response().Header().Set("Connection", "close")
			}
		})
		if !drainPath(r.path) {
			if !s.begin() {
				s.refuse(c, r, body, errDraining())
				return nil
			}
			defer s.end()
		}
		unescape(c)
		proven, err := s.keys.authorize(r.access, c.Request().Header)
		if proven {
			s.trust(c, start)
		}
		wrong := meansWrongKey(err)
		if err != nil {
			err = s.wrong.note(s.addr(c), err, start)
		} else {
			if wrong = s.keys.guesses(r.access, c.Request().Header); wrong {
				_ = s.wrong.note(s.addr(c), errWrongKey, start) // something else decides
			}
			defer r.trace(c, proven, start)()
			err = guard(c, r)
		}
		if err != nil && wrong && !c.Response().Committed {
			err = cmp.Or(s.wrong.slow(c.Request().Context(), s.addr(c), c.Response().Header()), err)
		}
		abort := false
		switch {
		case err == nil:
		case errors.Is(err, http.ErrAbortHandler):
			abort = true
		case c.Response().Committed:
			s.writeError(c, err) // only logs, because the reply has begun
			abort = true
		default:
			s.refuse(c, r, body, err)
		}
		if e := s.log.Debug(); e.Enabled() {
			s.logAccess(e, c, r, start)
		}
		if abort { // so that no client takes half a reply for a whole one
			panic(http.ErrAbortHandler)
		}
		return nil
	}
}

// unescape decodes the parameters of a path with an escaped slash, which echo leaves as
// they were sent.
func unescape(c echo.Context) {
	if c.Request().URL.RawPath == "" {
		return
	}
	values := c.ParamValues()
	for i, v := range values {
		if decoded, err := url.PathUnescape(v); err == nil { // net/url has checked it
			values[i] = decoded
		}
	}
	c.SetParamValues(values...)
}

// guard turns a panic outside of a levelled request into an error.
func guard(c echo.Context, r *route) (err error) {
	defer func() {
		v := recover()
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			err = e // net/http's own way to abort
		} else if v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return r.serve(c, r)
}

// smallBody is how many bytes a body may have to be read without a turn: it takes hardly
// more memory than its connection.
const smallBody = 16 << 10

// levelled runs the route's handler as a levelled request. The body is read before it is
// admitted, because a client may be slow. An error of that read is the handler's to find.
func (s *shared) levelled(c echo.Context, r *route) error {
	if watched(c.Request()) == nil || r.domain == transfer || r.access == public || r.access == buildKey {
		return s.admit(c, r) // it reads no body, or not as a whole
	}
	read := func() error {
		_, _ = readBody(c)
		return s.admit(c, r)
	}
	switch n := c.Request().ContentLength; {
	case n >= 0 && n <= smallBody:
		return read()
	case r.access == monitorKey: // nobody may have checked a key
		return s.within(s.bodies, c, read)
	default:
		return inTurn(c, s.uploads, s.sender(c), read)
	}
}

// admit runs the route's handler in a place.
func (s *shared) admit(c echo.Context, r *route) error {
	return s.do(c, r, func(ctx context.Context) error { return s.answer(ctx, c, r.handle) })
}

// open is levelled for routes that need no key. Together strangers may use only a share of
// the places.
func (s *shared) open(c echo.Context, r *route) error {
	if s.known.has(s.addr(c), time.Now()) {
		return s.levelled(c, r)
	}
	return s.within(s.strangers, c, func() error { return s.levelled(c, r) })
}

// transfer is levelled for files. It waits for the turn of its worker or address.
func (s *shared) transfer(c echo.Context, r *route) error {
	return inTurn(c, s.transfers, s.sender(c), func() error { return s.admit(c, r) })
}

// sender is whose turns a request with a right key takes: its worker's, or its address's.
func (s *shared) sender(c echo.Context) string {
	if id := c.Request().Header.Get(api.HeaderWorkerID); store.ValidID(id) {
		return "worker " + id
	}
	return s.addr(c)
}

// inTurn calls f while it holds a turn of who.
func inTurn(c echo.Context, t *turns, who string, f func() error) error {
	if err := t.take(c.Request().Context(), who); err != nil {
		return err
	}
	defer t.giveBack(who)
	return f()
}

// probe runs the handler of a route that needs no place. It uses no limited resource, so
// health checks are always served.
func (s *shared) probe(c echo.Context, r *route) error {
	return s.answer(c.Request().Context(), c, r.handle)
}

// direct runs the route's handler without levelling, a limited number at a time, so that
// operators are served even if other parts are broken.
func (s *shared) direct(c echo.Context, r *route) error {
	sh := s.pages
	if r.access == adminKey {
		sh = s.orders
	}
	return s.within(sh, c, func() error { return s.answer(c.Request().Context(), c, r.handle) })
}

// requestIDFor returns the client's id of a request if it is valid, else a new one that
// is unique among all servers.
func requestIDFor(r *http.Request) string {
	if id := header(r.Header, keyRequestID); saneRequestID(id) {
		return id
	}
	return rand.Text()
}

func saneRequestID(id string) bool {
	const sane = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
	return id != "" && len(id) <= 128 && strings.Trim(id, sane) == ""
}

func requestID(c echo.Context) string { return header(c.Response().Header(), keyRequestID) }

// logAccess writes the access log. It logs the route, never the path or the query,
// because these may contain secrets.
func (s *shared) logAccess(e *zerolog.Event, c echo.Context, r *route, start time.Time) {
	e.Str("method", c.Request().Method).Str("route", r.path).Stringer("domain", r.domain).
		Int("status", c.Response().Status).Int64("bytes", c.Response().Size).
		Dur("duration", time.Since(start)).Str("request_id", requestID(c)).Msg("request")
}
