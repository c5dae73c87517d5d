package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog" // it takes what net/http logs to our logger
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/store"
	"takt/store/backoff"
	"takt/store/limiter"
	"takt/store/metrics"
)

// maxHeaderBytes is how many bytes a request's header may have.
const maxHeaderBytes = 32 << 10

// maxHTTP2Streams is how many requests one connection may have at once.
const maxHTTP2Streams = 32

// Server answers HTTP: it runs the handlers of the routes that it was given. Make it with
// New.
type Server struct {
	Config   Config
	Log      zerolog.Logger
	Keys     *Keys
	metrics  *serverMetrics
	Observed *metrics.Metrics
	requests Requests
	misused  func(k *store.NamedKey, address string, refused error)
	serving  func(ctx context.Context) (end func())

	// handlers are those of all routes, by method and path.
	handlers map[string]Handler
	bodies   map[api.BodyLimit]int64
	tls      *Certificate // nil: plain HTTP
	echo     *echo.Echo
	limits   map[string]*limiter.Limiter // by rule

	conns     *connections
	accepting chan struct{}  // one token: the Serve that accepts connections
	ended     sync.WaitGroup // calls of Serve whose requests may still run
	detached  detached       // what their requests have begun
	// release ends what waits in the Serve that accepts: parked polls and streams.
	release atomic.Pointer[context.CancelCauseFunc]
	// leave makes that Serve accept nothing more, see HandOver.
	leave atomic.Pointer[func()]

	inFlight atomic.Int64 // requests under way, parked polls included
	draining atomic.Bool
	left     atomic.Bool   // HandOver was called
	idle     chan struct{} // gets a token when nothing is in flight any more while the server drains
	Wrong    *wrongKeys
	trusted  *trusted // addresses
	workers  *trusted // by credential, see Belongs
	// NoRoute answers a request that no route takes, or reports false; nil answers none. It
	// is set before the server serves.
	NoRoute  func(c echo.Context, err error) bool
	jsonType []string // the Content-Type of all JSON; never changed
}

// Requests runs each request as a process of its own, one per place.
type Requests interface {
	// Do runs fn and returns its error, or why fn could not finish. fn's context ends
	// with ctx, or when the process is told to end. Do never returns while fn runs,
	// because fn uses what belongs to its caller. Errors besides fn's: Overloaded,
	// Unavailable. An error with a method Overload is shown with rule, load and limit.
	Do(ctx context.Context, w store.Work, fn func(ctx context.Context) error) error
}

// Deps is what a Server works with. Serving, TLS and Observed may be nil.
type Deps struct {
	Requests Requests
	// Report writes an entry into the audit. It does not block.
	Report func(e store.AuditEntry)
	// Misused is called when a key that is for one worker was refused because another one, or
	// another process of it, has sent it from address. It does not block. nil: nobody is told.
	Misused func(k *store.NamedKey, address string, refused error)
	// Serving is called when a Serve begins to accept connections, and end when it returns.
	// ctx ends with the last request.
	Serving func(ctx context.Context) (end func())
	TLS     *Certificate
	// Bodies are the limits on bodies other than JSON, in bytes.
	Bodies   map[api.BodyLimit]int64
	Observed *metrics.Metrics
	// Ring are the keys with names; nil: there are none.
	Ring   *store.KeyRing
	Logger zerolog.Logger
}

// New returns a Server without routes. It starts nothing. cfg must be complete and
// valid, see Config.
func New(deps Deps, cfg Config) *Server {
	s := &Server{
		Config: cfg, Log: deps.Logger, Keys: NewKeys(cfg, deps.Ring), metrics: newMetrics(deps.TLS, deps.Ring), Observed: deps.Observed,
		requests: deps.Requests, serving: deps.Serving, handlers: map[string]Handler{}, bodies: deps.Bodies,
		tls: deps.TLS, echo: echo.New(), limits: map[string]*limiter.Limiter{}, accepting: make(chan struct{}, 1),
		idle: make(chan struct{}, 1), jsonType: []string{"application/json"}, trusted: newTrusted(trustedFor), workers: newTrusted(belongsFor),
	}
	for _, l := range limits(cfg) {
		s.limits[l.Rule] = limiter.New(l)
	}
	s.metrics.Read(func(show metrics.Show) {
		for _, l := range s.LimitUses() {
			show("takt_limit_held", float64(l.Held), l.Rule)
			show("takt_limit_waiting", float64(l.Waiting), l.Rule)
			show("takt_limit_refused_total", float64(l.Refused), l.Rule)
		}
	})
	if s.Observed == nil {
		s.Observed = metrics.New()
	}
	if s.serving == nil {
		s.serving = func(context.Context) func() { return func() {} }
	}
	s.conns = newConnections(cfg, s.trusted, s.metrics.connections.Inc)
	s.misused = deps.Misused
	s.Wrong = &wrongKeys{delayed: s.Limit(RuleWrongKeys), most: cfg.WrongKeys, log: s.Log, count: s.metrics.wrongKeys, report: deps.Report}
	s.echo.HTTPErrorHandler = func(err error, c echo.Context) { // of no route, see wrap
		moveWriteDeadline(c.Response().Writer)
		if s.NoRoute == nil || !s.NoRoute(c, err) {
			s.writeError(c, err)
		}
	}
	return s
}

// Handle adds routes.
func (s *Server) Handle(routes ...Route) {
	for _, r := range routes {
		for method := range strings.FieldsSeq(r.Method) {
			s.echo.Add(method, r.Path, s.wrap(&r, method))
			s.handlers[method+" "+r.Path] = r.Handle
		}
	}
}

// HandlerOf returns the handler of a route that was added, nil if there is none.
func (s *Server) HandlerOf(method, path string) Handler { return s.handlers[method+" "+path] }

// Routes lists the registered routes.
func (s *Server) Routes() []*echo.Route { return s.echo.Routes() }

// Serve answers connections of ln until ctx ends. Then it returns at once: it accepts
// nothing more, parked polls are answered, open connections may send a last request for
// lastRequests, and running requests go on for at most ShutdownTimeout; [Server.Wait] waits for
// both. It returns nil after an orderly end. ln is
// borrowed: it stays open, and connections that arrive between two calls of Serve wait in
// it. Of several calls only one at a time accepts, and the others wait.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	select {
	case s.accepting <- struct{}{}:
		defer func() { <-s.accepting }()
	case <-ctx.Done():
		return nil
	}
	borrowed, err := borrow(ln, s.conns)
	if err != nil {
		return fmt.Errorf("serving HTTP: %w", err)
	}
	// Requests outlive ctx by up to ShutdownTimeout; parked polls don't.
	base, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	waiting, release := context.WithCancelCause(ctx)
	base = context.WithValue(context.WithValue(base, stoppingKey{}, waiting), detachedKey{}, &s.detached)
	defer s.serving(base)()
	var ending atomic.Bool
	handler := s.Handler()
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ending.Load() {
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		}),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return s.conns.accepted(ctx, c, s.Config.ReadHeaderTimeout)
		},
		ReadHeaderTimeout: s.Config.ReadHeaderTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       s.Config.IdleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxHTTP2Streams, WriteByteTimeout: s.Config.StreamTimeout},
		ConnState:         s.conns.count,
		ErrorLog:          slog.NewLogLogger(zerolog.NewSlogHandler(s.Log.With().Str("source", "net/http").Logger()), slog.LevelDebug),
	}
	leave := func() {
		borrowed.leave()
		srv.SetKeepAlivesEnabled(false) // closes those that are idle
		release(ErrServerClosed)
	}
	s.release.Store(&release)
	s.leave.Store(&leave)
	if s.draining.Load() {
		release(ErrServerClosed)
	}
	if s.left.Load() {
		leave()
	}
	s.ended.Add(1)
	end := func() {
		defer s.ended.Done()
		defer abort(ErrServerClosed)
		defer release(ErrServerClosed)
		limit, done := context.WithTimeoutCause(base, s.patience(), ErrServerClosed)
		defer done()
		ending.Store(true)
		_ = borrowed.Close() // it cannot fail, and a Serve that ended has closed it
		s.awaitLast(limit)
		if err := srv.Shutdown(limit); err != nil {
			if s.inFlight.Load() > 0 {
				s.Log.Warn().Dur("limit", s.patience()).Msg("requests did not end in time and were cut off")
			}
			abort(ErrServerClosed)
			_ = srv.Close()
		}
	}
	cancel := context.AfterFunc(ctx, end)
	if s.tls != nil {
		srv.TLSConfig = s.tls.config()
		err = srv.ServeTLS(borrowed, "", "")
	} else {
		err = srv.Serve(borrowed)
	}
	if cancel() { // the listener failed
		_ = srv.Close()
		end()
	}
	if rerr := borrowed.giveBack(); rerr != nil {
		s.Log.Warn().Err(rerr).Msg("listening socket not released")
	}
	if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving HTTP: %w", err)
}

// Handler returns the handler of all routes, for tests.
func (s *Server) Handler() http.Handler {
	plain, secure := secureHeaders(false), secureHeaders(true)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k := connOf(r.Context())
		k.begin()
		defer k.end()
		h := w.Header()
		if r.TLS != nil {
			maps.Copy(h, secure)
		} else {
			maps.Copy(h, plain)
		}
		h[keyRequestID] = []string{requestIDFor(r)}
		if allowCrossOrigin(h, r) {
			moveWriteDeadline(w)
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if r.Body != nil && r.Body != http.NoBody {
			// net/http would wait for a body that is not read. Reads move this deadline,
			// see body.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.Config.ReadTimeout))
		}
		// One trailing slash is accepted on every path.
		if p := r.URL.Path; len(p) > 1 && p[len(p)-1] == '/' {
			r.URL.Path = p[:len(p)-1]
			r.URL.RawPath = strings.TrimSuffix(r.URL.RawPath, "/")
		}
		s.echo.ServeHTTP(w, r)
	})
}

// ErrServerClosed is the cause of contexts that end because a Serve ends or the server drains.
var ErrServerClosed = errors.New("the server is closing")

// ErrDraining is the answer of a draining server.
func ErrDraining() error {
	return store.NewError(store.Unavailable, "The controller is shutting down")
}

// stoppingKey is the context key of the context that ends when its Serve ends or the
// server drains.
type stoppingKey struct{}

// Stopping returns a context that ends before ctx when the server is closing.
func Stopping(ctx context.Context) context.Context {
	if c, ok := ctx.Value(stoppingKey{}).(context.Context); ok {
		return c
	}
	return ctx
}

// Drain prepares the end of the process. From now on new requests are answered 503 with
// Connection: close, except for /livez and /readyz; what waits is answered at once. Drain
// returns when the requests under way have ended, of all calls of Serve, or after
// ShutdownTimeout. Serve goes on and may be called again, so that probes are answered
// until the process ends.
func (s *Server) Drain(ctx context.Context) {
	s.draining.Store(true)
	if release := s.release.Load(); release != nil {
		(*release)(ErrServerClosed)
	}
	limit := time.NewTimer(s.Config.ShutdownTimeout)
	defer limit.Stop()
	for s.inFlight.Load() > 0 {
		select {
		case <-s.idle:
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// HandOver prepares the end of a process whose listener stays open in another process. From
// now on nothing is accepted: new connections wait for the process that comes next. What waits
// is answered at once, and the other requests are served, also those that still arrive on open
// connections. HandOver returns when all connections have closed, or after ShutdownTimeout.
func (s *Server) HandOver(ctx context.Context) {
	s.left.Store(true)
	if leave := s.leave.Load(); leave != nil {
		(*leave)()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Config.ShutdownTimeout, ErrServerClosed)
	defer cancel()
	for s.conns.any() && backoff.Pause(ctx, 10*time.Millisecond) == nil {
	}
}

// Wait returns when the requests of all calls of Serve that have returned have ended, and what
// they began.
func (s *Server) Wait() {
	s.ended.Wait()
	s.detached.wait()
}

// patience is how long the requests of a Serve that returns may take to end. When the
// server drains, that time is over.
func (s *Server) patience() time.Duration {
	if s.draining.Load() || s.left.Load() {
		return s.Config.RequestGrace
	}
	return s.Config.ShutdownTimeout
}

// lastRequests is how long open connections may send a last request after a Serve has ended.
const lastRequests = 2 * time.Second

// awaitLast returns when connections of a Serve that has ended may be closed. An operator's browser
// asks for the next page just when the endpoint restarts, perhaps on a connection that it opened
// in advance. If that is closed meanwhile it shows an error, because it repeats a request only on
// a connection that has answered one. When the process ends there is no next page.
func (s *Server) awaitLast(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, lastRequests, ErrServerClosed)
	defer cancel()
	for s.conns.any() && !s.draining.Load() && !s.left.Load() && backoff.Pause(ctx, 10*time.Millisecond) == nil {
	}
}

// drainPath reports whether a route is served while the server drains. Its requests are
// not waited for.
func drainPath(path string) bool { return path == "/livez" || path == "/readyz" || path == "/healthz" }

// Running is how many requests are under way, parked polls included.
func (s *Server) Running() int { return int(s.inFlight.Load()) }

// begin counts a request as under way. It returns false if the server drains.
func (s *Server) begin() bool {
	s.inFlight.Add(1)
	if s.draining.Load() {
		s.end()
		return false
	}
	return true
}

// end counts a request as ended.
func (s *Server) end() {
	if s.inFlight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default: // Drain has not seen the one before
		}
	}
}
