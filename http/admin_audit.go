package http

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/store"
)

const (
	auditList    = 100
	maxAuditList = 1000
	// auditPatience is how long an action waits for its entry to be written:
	// the database may be what is to be repaired.
	auditPatience = 2 * time.Second
	// auditEffort is how long it is tried to write an outcome.
	auditEffort = 10 * time.Minute
)

var errSlowAudit = errors.New("the audit was not written in time")

// handleAudit handles GET /admin/audit: what operators did, newest first.
func (s *Server) handleAudit(ctx context.Context, c echo.Context) error {
	limit := auditList
	if v := c.QueryParam("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxAuditList {
			return invalid("limit must be 1 to 1000")
		}
		limit = n
	}
	entries, err := s.deps.Audit.List(ctx, limit)
	if err != nil {
		return err
	}
	out := api.Audit{Entries: []api.AuditEntry{}}
	for _, e := range entries {
		shown := api.AuditEntry{
			ID: e.ID, At: api.FormatTime(e.At), Actor: e.Actor, Action: e.Action, Target: e.Target, Reason: e.Reason, Detail: e.Detail,
		}
		if e.Outcome != "" {
			shown.Outcome = &e.Outcome
		}
		out.Entries = append(out.Entries, shown)
	}
	return s.reply(c, http.StatusOK, out)
}

// begin writes an entry before its action. If that is not possible, the action
// goes on: the log has the entry, and conclude writes all of it.
func (s *Server) begin(ctx context.Context, e *store.AuditEntry) {
	ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
	defer cancel()
	id, err := s.deps.Audit.Append(ctx, *e)
	level := zerolog.InfoLevel
	if err != nil {
		level = zerolog.WarnLevel
	}
	e.ID = id
	s.log.WithLevel(level).Err(err).Int64("audit", id).Str("actor", e.Actor).Str("action", e.Action).Str("target", e.Target).
		Str("reason", e.Reason).RawJSON("detail", e.Detail).Msg("operator")
}

// conclude writes how the action ended. It reports whether that was possible.
func (s *Server) conclude(ctx context.Context, e *store.AuditEntry, failed error) bool {
	e.Outcome = "done"
	if failed != nil {
		e.Outcome = failureOf(failed).Message
	}
	s.log.Info().Int64("audit", e.ID).AnErr("cause", failed).Str("outcome", e.Outcome).Msg("operator's action ended")
	return s.writeOutcome(ctx, e) == nil
}

func (s *Server) writeOutcome(ctx context.Context, e *store.AuditEntry) error {
	ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
	defer cancel()
	if e.ID != 0 {
		return s.deps.Audit.Conclude(ctx, e.ID, e.Outcome)
	}
	_, err := s.deps.Audit.Append(ctx, *e)
	return err
}

// concludeLater tries on: the database is away.
func (s *Server) concludeLater(ctx context.Context, e *store.AuditEntry) {
	ctx, cancel := context.WithTimeoutCause(ctx, auditEffort, errSlowAudit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if s.writeOutcome(ctx, e) == nil {
				return
			}
		case <-ctx.Done():
			s.log.Error().Err(context.Cause(ctx)).Int64("audit", e.ID).Str("outcome", e.Outcome).Msg("an outcome was not written")
			return
		}
	}
}

// remoteHost is the address of the other side, without its port.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
