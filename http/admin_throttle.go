package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	queueList    = 100
	maxQueueList = 1000
)

// handleQueues handles GET /admin/throttle/queues?portal=&limit=.
func (s *Server) handleQueues(ctx context.Context, c echo.Context) error {
	limit, portal := queueList, int64(0)
	var err error
	if v := c.QueryParam("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 || limit > maxQueueList {
			return invalid("limit must be 1 to 1000")
		}
	}
	if v := c.QueryParam("portal"); v != "" {
		if portal, err = strconv.ParseInt(v, 10, 64); err != nil || portal <= 0 {
			return invalid("portal must be a positive integer")
		}
	}
	list, err := s.deps.ThrottleStore.Queues(ctx, portal, limit)
	if err != nil {
		return err
	}
	out := api.ThrottleQueues{Queues: []api.ThrottleQueue{}}
	for _, q := range list {
		out.Queues = append(out.Queues, queueReply(q))
	}
	return s.reply(c, http.StatusOK, out)
}

// handleQueue handles GET /admin/throttle/queues/:id.
func (s *Server) handleQueue(ctx context.Context, c echo.Context) error {
	q, err := s.deps.ThrottleStore.Queue(ctx, text(c.Param("id")))
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, queueReply(q))
}

func queueReply(q store.QueueStatus) api.ThrottleQueue {
	when := func(t time.Time) *string {
		if t.IsZero() {
			return nil
		}
		text := api.FormatTime(t)
		return &text
	}
	out := api.ThrottleQueue{
		ID: q.ID, PortalID: q.PortalID, WorkflowID: q.WorkflowID, ActionID: q.ActionID,
		Depth: q.Depth, Held: q.Held, InFlight: q.InFlight, Oldest: when(q.Oldest), RateUsed: q.RateUsed,
		MaxThroughput: q.Config.MaxThroughput, TimePeriod: q.Config.TimePeriod, TimeUnit: string(q.Config.TimeUnit),
		NextDue: when(q.NextDue), Paused: q.Paused, RunnerAt: when(q.RunnerAt),
	}
	if q.LastError != "" {
		out.LastError = &q.LastError
	}
	return out
}

// order carries out an operator's order; it may have a reason.
func (s *Server) order(ctx context.Context, c echo.Context, action, target string, do func(ctx context.Context) error) error {
	var body api.ThrottleOrder
	if _, err := s.readJSON(c, &body); err != nil {
		return err
	}
	why, err := reason(body.Reason)
	if err != nil {
		return err
	}
	return s.audited(ctx, c, action, target, why, nil, do)
}

// pauseWith handles POST /admin/throttle/queues/:id/pause and /resume.
func (s *Server) pauseWith(paused bool) handler {
	action := "resume"
	if paused {
		action = "pause"
	}
	return func(ctx context.Context, c echo.Context) error {
		id := text(c.Param("id"))
		err := s.order(ctx, c, action, id, func(ctx context.Context) error {
			err := s.deps.ThrottleStore.Pause(ctx, id, paused)
			if err == nil && !paused {
				s.look(ctx, id)
			}
			return err
		})
		if err != nil {
			return err
		}
		return s.handleQueue(ctx, c)
	}
}

// look has a queue served at once. If that fails its job sees to it.
func (s *Server) look(ctx context.Context, queue string) {
	if err := s.deps.Throttle.Look(ctx, queue); err != nil {
		s.log.Warn().Err(err).Str("queue", queue).Msg("queue is not served yet")
	}
}

// handleRedrive handles POST /admin/throttle/queues/:id/redrive: what failed is
// tried again now.
func (s *Server) handleRedrive(ctx context.Context, c echo.Context) error {
	id := text(c.Param("id"))
	var out api.Redriven
	err := s.order(ctx, c, "redrive", id, func(ctx context.Context) (err error) {
		if out.Actions, err = s.deps.ThrottleStore.Redrive(ctx, id); err == nil {
			s.look(ctx, id)
		}
		return err
	})
	if err != nil {
		return err
	}
	q, err := s.deps.ThrottleStore.Queue(ctx, id)
	if err != nil {
		return err
	}
	out.Queue = queueReply(q)
	return s.reply(c, http.StatusOK, out)
}

// handleRekey handles POST /admin/throttle/rekey: tokens that an older key has
// sealed are sealed with the current one.
func (s *Server) handleRekey(ctx context.Context, c echo.Context) error {
	var out api.Rekeyed
	err := s.order(ctx, c, "rekey", "oauth_tokens", func(ctx context.Context) (err error) {
		out.Portals, err = s.deps.OAuth.Rekey(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, out)
}
