package http

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/store"
)

// prepare fills in what is computed once.
func (s *Server) prepare() error {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails
	s.idPrefix = base64.RawURLEncoding.EncodeToString(b[:]) + "-"
	var err error
	if s.imageID, err = marshal(s.cfg.BaseImageID); err != nil {
		return fmt.Errorf("http settings: base image: %w", err)
	}
	s.jsonType = []string{"application/json"}
	s.buffers.New = func() any { b := make([]byte, 0, 1024); return &b }
	s.readers.New = newFormReader
	return nil
}

// requestIDFor returns the client's id of a request if it is sane, else one
// that is unique among all servers.
func (s *Server) requestIDFor(r *http.Request) string {
	if id := header(r.Header, keyRequestID); saneRequestID(id) {
		return id
	}
	return s.idPrefix + strconv.FormatUint(s.idCount.Add(1), 36)
}

func saneRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.:", c) >= 0:
		default:
			return false
		}
	}
	return true
}

func requestID(c echo.Context) string { return header(c.Response().Header(), keyRequestID) }

// wrap puts a route's common part around its handler.
func (s *Server) wrap(r route, method string) echo.HandlerFunc {
	m := s.metrics.of(r, method)
	serve := s.serveActor
	switch {
	case r.path == pollPath:
		serve = s.servePoll
	case r.path == deploymentEventsPath:
		serve = s.serveDeploymentEvents
	case r.path == registerPath:
		serve = s.serveRegister
	case r.path == logsPath && method == http.MethodGet:
		serve = s.serveLogs
	case r.path == eventsPath:
		serve = s.serveEvents
	case r.bypass:
		serve = s.serveBypass
	}
	return func(c echo.Context) error {
		start := time.Now()
		m.running.Inc()
		s.inFlight.Add(1)
		defer func() { s.inFlight.Add(-1); m.ended(c.Response().Status, time.Since(start)) }()
		body := s.watchBody(c, r)
		err := s.authorize(r.access, c.Request().Header)
		if err == nil {
			err = s.guard(c, r, serve)
		}
		if err != nil {
			s.refuse(c, r, body, err)
		}
		if e := s.log.Debug(); e.Enabled() {
			s.logAccess(e, c, r, start)
		}
		return nil
	}
}

// guard turns a panic outside of a request actor into an error.
func (s *Server) guard(c echo.Context, r route, serve func(echo.Context, route) error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if e, ok := v.(error); ok && errors.Is(e, http.ErrAbortHandler) {
			panic(v) // net/http's own way to break off
		}
		err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
	}()
	return serve(c, r)
}

// work describes a request to those who level the load.
func work(c echo.Context, r route) store.Work {
	return store.Work{Domain: r.domain.String(), Route: r.path, ID: requestID(c), Key: c.Request().URL.Path, Limit: r.domain.limit()}
}

// serveActor runs the handler as a request actor.
func (s *Server) serveActor(c echo.Context, r route) error {
	return s.deps.Requests.Do(c.Request().Context(), work(c, r), func(ctx context.Context) error { return r.handle(ctx, c) })
}

// serveBypass runs the handler without an actor, a limited number at once.
func (s *Server) serveBypass(c echo.Context, r route) error {
	select {
	case s.bypass <- struct{}{}:
	default:
		return store.NewError(store.Overloaded, "Too many requests, try again later")
	}
	defer func() { <-s.bypass }()
	return r.handle(c.Request().Context(), c)
}

// logAccess writes the access log. It shows the route, never the path or the
// query: these may hold what nobody should read.
func (s *Server) logAccess(e *zerolog.Event, c echo.Context, r route, start time.Time) {
	e.Str("method", c.Request().Method).Str("route", r.path).Stringer("domain", r.domain).
		Int("status", c.Response().Status).Int64("bytes", c.Response().Size).
		Dur("duration", time.Since(start)).Str("request_id", requestID(c)).Msg("request")
}

// allowCrossOrigin lets pages of any origin use the interface.
// It reports whether the request was only the question whether it may.
func allowCrossOrigin(h http.Header, r *http.Request) (preflight bool) {
	origin := header(r.Header, keyOrigin)
	if origin == "" || !crossOrigin(r.URL.Path) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Add("Vary", "Origin")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After, ETag, Repr-Digest, RateLimit, RateLimit-Policy, Idempotent-Replayed")
		return false
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", "GET,HEAD,PUT,PATCH,POST,DELETE")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	return true
}
