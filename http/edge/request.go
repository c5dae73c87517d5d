package edge

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
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/store"
)

// wrap returns the echo handler of a route, with the steps that all routes share.
func (s *Server) wrap(r *Route, method string) echo.HandlerFunc {
	m := s.metrics.of(r, method)
	return func(c echo.Context) error {
		start := time.Now()
		m.running.Inc()
		defer func() { m.ended(c.Request().Context(), c.Response(), time.Since(start)) }()
		body := s.watchBody(c, r)
		c.Response().Before(func() {
			moveWriteDeadline(c.Response().Writer)
			if s.draining.Load() {
				c.Response().Header().Set("Connection", "close")
			}
		})
		if !drainPath(r.Path) {
			if !s.begin() {
				s.refuse(c, r, body, ErrDraining())
				return nil
			}
			defer s.end()
		}
		unescape(c)
		who, proven, err := s.Keys.authorize(r, c.Request().Header)
		if who != nil {
			c.Set(namedKey, who)
		}
		if err == nil && r.Scope == store.ScopeWorker {
			err = bind(who, c)
		}
		if proven && err == nil {
			s.Trust(c, credential(r, who), start)
		}
		if store.CodeOf(err) == store.MissingScope {
			s.metrics.missingScopes.Inc()
		}
		wrong := MeansWrongKey(err)
		if err != nil {
			err = s.Wrong.Note(s.Addr(c), err, start)
		} else {
			if wrong = s.Keys.guesses(r.Access, c.Request().Header); wrong {
				_ = s.Wrong.Note(s.Addr(c), ErrWrongKey, start) // something else decides
			}
			defer r.trace(c, proven, start)()
			err = guard(c, r)
		}
		if code := store.CodeOf(err); who.Binds() && (code == store.WorkerMismatch || code == store.DuplicateWorker) && s.misused != nil {
			s.misused(who, printAddr(s.Addr(c)), err)
		}
		if err != nil && wrong && !c.Response().Committed {
			err = cmp.Or(s.Wrong.Slow(c.Request().Context(), s.Addr(c), c.Response().Header()), err)
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
		if e := s.Log.Debug(); e.Enabled() {
			s.logAccess(e, c, r, start)
		}
		if abort { // so that no client takes half a reply for a whole one
			panic(http.ErrAbortHandler)
		}
		return nil
	}
}

// bind returns an error if a request with key k names another worker than k's, in its header or
// query; handlers check bodies, paths and tokens. A process that names itself not gets the name
// [store.UnnamedInstance], because one without a name is never another than the one that holds
// the worker.
func bind(k *store.NamedKey, c echo.Context) error {
	if k == nil || k.Worker == "" {
		return nil
	}
	h := c.Request().Header
	if Header(h, HeaderInstance) == "" {
		h[HeaderInstance] = []string{store.UnnamedInstance}
	}
	for _, id := range []string{h.Get(api.HeaderWorkerID), c.QueryParam("worker_id")} {
		if err := k.Of(id); id != "" && err != nil {
			return err
		}
	}
	return nil
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
func guard(c echo.Context, r *Route) (err error) {
	defer func() {
		v := recover()
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			err = e // net/http's own way to abort
		} else if v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return r.Serve(c, r)
}

// smallBody is the size, in bytes, up to which a body is read without a limit on how many,
// because it takes hardly more memory than its connection.
const smallBody = 16 << 10

// Levelled runs the route's handler as a levelled request. The body is read before admission,
// because its client may be slow. The handler gets an error of that read from ReadBody.
func (s *Server) Levelled(c echo.Context, r *Route) error {
	if Watched(c.Request()) == nil || r.Class == api.Transfer || r.Access == api.Public || r.Access == api.BuildKey {
		return s.Admit(c, r) // it reads no body, or not as a whole
	}
	read := func() error {
		_, _ = ReadBody(c)
		return s.Admit(c, r)
	}
	switch n := c.Request().ContentLength; {
	case n >= 0 && n <= smallBody:
		return read()
	case r.Access == api.MonitorKey: // nobody may have checked a key
		return s.Within(RulePublicBodies, c, read)
	default:
		return s.Limit(RuleBodies).Do(c.Request().Context(), s.ShareOf(c), read)
	}
}

// Admit runs the route's handler in a place.
func (s *Server) Admit(c echo.Context, r *Route) error { return s.run(c, r, r.Handle) }

func (s *Server) run(c echo.Context, r *Route, handle Handler) error {
	return s.Do(c, r, func(ctx context.Context) error { return s.Answer(ctx, c, handle) })
}

// Open is like Levelled, for routes that need no key. All unknown addresses together may only
// use a part of the places.
func (s *Server) Open(c echo.Context, r *Route) error {
	return s.public(c, func() error { return s.Levelled(c, r) })
}

// OpenTo is like Open, with another handler, for a route that has read its body.
func (s *Server) OpenTo(c echo.Context, r *Route, handle Handler) error {
	return s.public(c, func() error { return s.run(c, r, handle) })
}

func (s *Server) public(c echo.Context, f func() error) error {
	if s.trusted.has(s.Addr(c), time.Now()) {
		return f()
	}
	return s.Within(RulePublic, c, f)
}

// Probe runs the handler of a route that needs no place. It uses no limited resource, so
// health checks are always served.
func (s *Server) Probe(c echo.Context, r *Route) error {
	return s.Answer(c.Request().Context(), c, r.Handle)
}

// Direct runs the route's handler without levelling, a limited number at a time, so that
// operators are served even if other parts are broken.
func (s *Server) Direct(c echo.Context, r *Route) error {
	answer := func() error { return s.Answer(c.Request().Context(), c, r.Handle) }
	if r.Access == api.AdminKey {
		return s.Limit(RuleAdmin).Do(c.Request().Context(), s.ShareOf(c), answer)
	}
	return s.Within(RulePages, c, answer)
}

// requestIDFor returns the client's id of a request if it is valid, else a new one that
// is unique among all servers.
func requestIDFor(r *http.Request) string {
	if id := Header(r.Header, keyRequestID); saneRequestID(id) {
		return id
	}
	return rand.Text()
}

func saneRequestID(id string) bool {
	const sane = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:"
	return id != "" && len(id) <= 128 && strings.Trim(id, sane) == ""
}

// RequestID returns the id of a request: its client's, or a new one.
func RequestID(c echo.Context) string { return Header(c.Response().Header(), keyRequestID) }

// logAccess writes the access log. It logs the route, never the path or the query,
// because these may contain secrets.
func (s *Server) logAccess(e *zerolog.Event, c echo.Context, r *Route, start time.Time) {
	e.Str("method", c.Request().Method).Str("route", r.Path).Stringer("domain", r.Class).
		Int("status", c.Response().Status).Int64("bytes", c.Response().Size).
		Dur("duration", time.Since(start)).Str("key", Caller{Key: KeyOf(c)}.KeyName()).Str("request_id", RequestID(c)).Msg("request")
}

// cutoff ends the run of a request's handler that is told to end while its client is still
// connected. First, reads of the client's body fail. If the handler has not returned after
// the grace period, its connection is closed, so whatever it writes later is discarded.
type cutoff struct {
	server *Server
	c      echo.Context
	body   *Body // nil if there is none
	work   store.Work

	mu    sync.Mutex  // guards what follows
	over  bool        // the handler has returned: its connection must not be touched
	timer *time.Timer // nil until the handler is told to end
	// lost is true if nothing may be written any more, because the grace period is over or the
	// handler itself has aborted.
	lost bool
}

// Do runs fn as a levelled request. http.ErrAbortHandler means that the caller must abort
// the connection.
func (s *Server) Do(c echo.Context, r *Route, fn func(ctx context.Context) error) error {
	req := c.Request()
	k := &cutoff{server: s, c: c, body: Watched(req)}
	k.work = store.Work{Domain: r.Class.String(), Route: r.Path, ID: RequestID(c), Key: req.URL.Path, Limit: limit(r.Class), OnStop: k.begin}
	if r.Class == api.Transfer {
		k.work.Share = s.ShareOf(c)
	}
	err := s.requests.Do(req.Context(), k.work, func(ctx context.Context) error { return k.watch(ctx, fn) })
	if k.lost {
		return http.ErrAbortHandler
	}
	return err
}

// watch calls fn. ctx belongs to the process that runs it. That process also handles
// panics, except http.ErrAbortHandler, which is not a crash.
func (k *cutoff) watch(ctx context.Context, fn func(ctx context.Context) error) (err error) {
	defer func() { // also after a panic or runtime.Goexit
		k.end()
		v := recover()
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			err, k.lost = e, true
		} else if v != nil {
			panic(v)
		}
	}()
	return fn(ctx)
}

// begin is called when the request's process is told to end.
func (k *cutoff) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	if k.body != nil {
		k.body.cut()
	}
	k.timer = time.AfterFunc(k.server.Config.RequestGrace, k.expire)
}

// expire is called when the grace period is over.
func (k *cutoff) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return
	}
	k.lost = true
	if k.body != nil {
		k.body.expire()
	}
	k.server.Log.Warn().Str("route", k.work.Route).Str("request_id", k.work.ID).Dur("grace", k.server.Config.RequestGrace).
		Msg("request did not end when cancelled; closing its connection")
	hangUp(k.c)() // HTTP/2 resets the stream by itself
}

// end records that the handler has returned. After it the cutoff does not touch the
// connection.
func (k *cutoff) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	if k.timer != nil {
		k.timer.Stop()
	}
}

// longAgo is a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }
