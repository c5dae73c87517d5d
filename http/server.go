package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog" //nolint:depguard // it takes what net/http logs to our logger
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/store"
	"takt/store/metrics"
)

// maxHeaderBytes is how many bytes a request's header may have.
const maxHeaderBytes = 32 << 10

// maxHTTP2Streams is how many requests one connection may have at once.
const maxHTTP2Streams = 32

// Server answers HTTP. Make it with New.
type Server struct {
	*shared
	keys   *keys
	tls    *Certificate // nil: plain HTTP
	echo   *echo.Echo
	ring   *ring
	logs   *followers
	drains chan struct{} // one token for each refused body that is being read

	conns     *connections
	accepting chan struct{}  // one token: the Serve that accepts connections
	ended     sync.WaitGroup // calls of Serve whose requests may still run
	// release ends what waits in the Serve that accepts: parked polls and streams.
	release atomic.Pointer[context.CancelCauseFunc]

	changed *followers // of deployments
	history *history
	pages   map[string]bool // "GET /fleet": the routes that IsPage reports
}

// New returns a Server. It starts nothing. cfg's zero values mean defaults.
func New(deps Deps, cfg Config) (*Server, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("http settings: %w", err)
	}
	if deps.Observed == nil {
		deps.Observed = metrics.New()
	}
	guests := max(1, cfg.MaxTransfers/4)
	s := &Server{
		shared: &shared{
			cfg: cfg, log: deps.Logger, metrics: newMetrics(deps.TLS), observed: deps.Observed, requests: deps.Requests,
			streams:   make(chan struct{}, cfg.MaxStreams),
			pages:     newShare("pages", cfg.MaxBypass, max(1, cfg.MaxBypass/4)),
			orders:    newShare("admin", cfg.MaxBypass, cfg.MaxBypass),
			transfers: newTurns("transfers", max(1, cfg.MaxTransfers-guests)),
			guests:    newTurns("downloads with a build token", guests),
			uploads:   newTurns("bodies", maxBodies),
			perBuild:  newShare("downloads of a build", guests+turnQueue, max(4, guests/8)),
			strangers: newShare("public requests", 512, 128), bodies: newShare("bodies of public requests", 1024, 256),
			known: newKnown(), idle: make(chan struct{}, 1), jsonType: []string{"application/json"},
		},
		keys: newKeys(cfg), tls: deps.TLS, echo: echo.New(), ring: newRing(ringSize), logs: newFollowers(), changed: newFollowers(),
		drains: make(chan struct{}, maxDrains), accepting: make(chan struct{}, 1),
	}
	s.conns = newConnections(cfg, s.known, s.metrics.connections.Inc)
	s.wrong = &wrongKeys{most: cfg.WrongKeys, log: s.log, count: s.metrics.wrongKeys, report: func(e store.AuditEntry) {
		deps.Background(func(ctx context.Context) {
			ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
			defer cancel()
			_, _ = deps.Audit.Append(ctx, e) // the log has it too
		})
	}}
	s.echo.HTTPErrorHandler = func(err error, c echo.Context) { s.writeError(c, err) }
	s.history, s.pages = newHistory(deps), map[string]bool{}
	deps.Builds = observedBuilds{deps.Builds, s.history}
	for _, r := range s.routes(deps) {
		for method := range strings.FieldsSeq(r.method) {
			s.echo.Add(method, r.path, s.wrap(&r, method))
			s.pages[method+" "+r.path] = r.access == reader || r.access == operator || r.access == visitor
		}
	}
	return s, nil
}

// Routes lists the registered routes.
func (s *Server) Routes() []*echo.Route { return s.echo.Routes() }

// IsPage reports whether a route is for people in a browser, not for programs.
func (s *Server) IsPage(method, path string) bool { return s.pages[method+" "+path] }

// Serve answers connections of ln until ctx ends. Then it returns at once: it accepts
// nothing more, parked polls are answered, and running requests go on for at most
// ShutdownTimeout; [Server.Wait] waits for them. It returns nil after an orderly end. ln is
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
	base = context.WithValue(base, stoppingKey{}, waiting)
	defer s.history.run(base)()
	srv := &http.Server{
		Handler:     s.Handler(),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return s.conns.accepted(ctx, c, s.cfg.ReadHeaderTimeout)
		},
		ReadHeaderTimeout: s.cfg.ReadHeaderTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       s.cfg.IdleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxHTTP2Streams, WriteByteTimeout: s.cfg.StreamTimeout},
		ConnState:         s.conns.count,
		ErrorLog:          slog.NewLogLogger(zerolog.NewSlogHandler(s.log.With().Str("source", "net/http").Logger()), slog.LevelDebug),
	}
	s.release.Store(&release)
	if s.draining.Load() {
		release(errServerClosed)
	}
	s.ended.Add(1)
	end := func() {
		defer s.ended.Done()
		defer abort(errServerClosed)
		defer release(errServerClosed)
		limit, done := context.WithTimeoutCause(base, s.patience(), errServerClosed)
		defer done()
		if err := srv.Shutdown(limit); err != nil {
			if s.inFlight.Load() > 0 {
				s.log.Warn().Dur("limit", s.patience()).Msg("requests did not end in time and were cut off")
			}
			abort(errServerClosed)
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
		s.log.Warn().Err(rerr).Msg("listener could not be given back")
	}
	if errors.Is(err, http.ErrServerClosed) {
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
			moveWriteDeadline(http.NewResponseController(w))
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if r.Body != nil && r.Body != http.NoBody {
			// net/http would wait for a body that is not read. Reads move this deadline,
			// see body.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.cfg.ReadTimeout))
		}
		// One trailing slash is accepted on every path.
		if p := r.URL.Path; len(p) > 1 && p[len(p)-1] == '/' {
			r.URL.Path = p[:len(p)-1]
			r.URL.RawPath = strings.TrimSuffix(r.URL.RawPath, "/")
		}
		s.echo.ServeHTTP(w, r)
	})
}
