package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
	"takt/store/tracing"
)

// explanation is the rest of a handler that may have to wait for a reading of the fleet. It runs
// outside of the places, so that those who wait take none from other queries.
type explanation func(ctx context.Context) (any, error)

// explainTimeout is how long an explanation may take.
const explainTimeout = 30 * time.Second

// explained returns a route whose handler returns an explanation.
func (h *builds) explained(r edge.Route) edge.Route {
	r.Serve = func(c echo.Context, r *edge.Route) error {
		var explain explanation
		err := h.edge.Do(c, r, func(ctx context.Context) error {
			v, err := r.Handle(h.edge.WithCaller(ctx, c), c)
			explain, _ = v.(explanation)
			return err
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Request().Context(), explainTimeout)
		defer cancel()
		var reply any
		err = h.edge.Limit(edge.RuleExplanations).Do(ctx, h.edge.ShareOf(c), func() (err error) {
			reply, err = explain(ctx)
			return err
		})
		if err != nil {
			return err
		}
		return h.edge.Reply(c, reply)
	}
	return r
}

// why says why a build waits, and when it may start.
func (h *builds) why(ctx context.Context, _ echo.Context, in api.BuildAccess) (any, error) {
	b, err := h.find(ctx, in, store.ScopeRead)
	if err != nil {
		return nil, err
	}
	reply := api.BuildWhy{ID: b.ID, State: string(b.State), Nearest: []string{}}
	waits, err := h.forecast.Waiting(ctx, b.ID)
	caller := edge.CallerOf(ctx)
	reads := caller.APIKey || caller.Session != nil || caller.Key.May(store.ScopeRead)
	return explanation(func(ctx context.Context) (any, error) {
		if waits == nil {
			return reply, nil
		}
		why, err := h.forecast.Why(ctx, waits)
		reply.State, reply.Number, reply.Reason, reply.Start = string(store.Pending), waits.Number, why.Text, why.Start
		near := why.Near
		if !reads { // and so may not see workers
			near = why.Counts
		}
		reply.RetryAt, reply.WaitingSince = api.NewMillis(waits.Due), api.NewMillis(waits.Since)
		reply.Unmatched, reply.Nearest = why.Kind == "unmatched", append(reply.Nearest, near...)
		return reply, err
	}), err
}

// timeline says what happened to a build.
func (h *builds) timeline(ctx context.Context, _ echo.Context, in api.BuildAccess) (any, error) {
	b, err := h.find(ctx, in, store.ScopeRead)
	if err != nil {
		return nil, err
	}
	past, err := h.forecast.Past(ctx, b)
	return explanation(func(ctx context.Context) (any, error) {
		steps, _, err := h.forecast.Story(ctx, past)
		reply := api.BuildTimeline{ID: b.ID, State: string(b.State), TraceID: tracing.BuildID(b.ID)} //nolint:contextcheck // a build's trace depends on its id alone
		for _, s := range steps {
			if s.Kind == "" { // it is still to come
				continue
			}
			reply.Steps = append(reply.Steps, api.TimelineStep{
				At: api.NewMillis(s.At), Kind: string(s.Kind), Title: s.Title, Text: s.Text,
				Attempt: s.Attempt, WorkerID: s.Worker, WorkerName: s.Name, Reason: s.Reason, BuildID: s.Build,
			})
		}
		return reply, err
	}), err
}
