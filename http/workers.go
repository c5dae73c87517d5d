package http

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
	"takt/store/tracing"
)

// workers registers and unregisters workers, shows the fleet and carries out orders on
// it.
type workers struct {
	edge      *edge.Server
	baseImage string
	store     Workers
	tokens    *store.WorkerTokens
	queue     Queue
	publish   Publish
	quota     *edge.Quota // of registrations, per remote address; nil: no limit
}

func newWorkers(s *edge.Server, cfg Config, d Deps) *workers {
	return &workers{s, cfg.BaseImageID, d.Workers, d.Tokens, d.Queue, d.Publish, edge.NewQuota("register", cfg.RegisterRate, time.Now())}
}

// serveRegister runs a registration, unless its address has sent too many.
func (h *workers) serveRegister(c echo.Context, r *edge.Route) error {
	if err := h.quota.Admit(c.Response().Header(), h.edge.Addr(c)); err != nil {
		return err
	}
	return h.edge.Levelled(c, r)
}

func (h *workers) register(ctx context.Context, c echo.Context) (any, error) {
	var body struct {
		ID           json.RawMessage `json:"id"`
		Name         json.RawMessage `json:"name"`
		Capabilities json.RawMessage `json:"capabilities"`
		ActiveBuilds json.RawMessage `json:"active_builds"`
		Instance     json.RawMessage `json:"instance"`
	}
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	}
	reg, err := store.ParseRegistration(body.ID, body.Name, body.Capabilities, body.ActiveBuilds, body.Instance)
	if err != nil {
		return nil, err
	}
	if reg.ID == "" {
		reg.ID = store.NewID()
	}
	if err := h.tokens.Ready(); err != nil { // checked first, so that no worker is registered without a token
		return nil, err
	}
	known, err := h.store.Register(ctx, reg)
	if store.CodeOf(err) == store.DuplicateWorker {
		return nil, h.conflict(ctx, reg, edge.Remote(c.Request(), h.edge.Config.TrustedProxies).String(), err)
	}
	if err != nil {
		return nil, fmt.Errorf("registering worker %s: %w", reg.ID, err)
	}
	reply := api.Registered{
		ID: reg.ID, AccessToken: h.tokens.Issue(known.Token), Status: "registered",
		Message: "Worker registered", BaseImageID: h.baseImage,
	}
	if known.Again {
		reply.Status, reply.Message = "re-registered", "Worker re-registered"
	}
	h.requeued(known.Requeued, store.LostRestarted)
	for _, b := range known.Failed {
		h.publish(store.TopicBuildUpdated, store.Lost(b, store.Failed, store.LostRestarted))
	}
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{
		WorkerID: reg.ID, Status: known.Status, Draining: known.Draining, Step: store.Step{What: store.StepRegistered, TraceID: tracing.ID(ctx)},
	})
	return reply, nil
}

// conflict records that a process was refused because another one holds its worker, and
// returns the error for it.
func (h *workers) conflict(ctx context.Context, reg store.Registration, address string, refused error) error {
	again, report, err := h.store.Conflict(ctx, reg.ID, address)
	if err != nil { // it is repeated soon
		return refused
	}
	if report {
		h.edge.Log.Warn().Str("worker", reg.ID).Str("name", reg.Name).Str("address", address).Str("instance", reg.Instance).
			Msg("registration refused: another process uses this worker id")
	}
	duplicate := store.ErrDuplicateWorker()
	duplicate.RetryAfter = again
	return duplicate
}

func (h *workers) unregister(ctx context.Context, c echo.Context) (any, error) {
	token := edge.Header(c.Request().Header, edge.HeaderWorkerToken)
	if token == "" {
		return nil, store.NewError(store.Unauthorized, "Missing X-Worker-Token header")
	}
	checked, err := h.tokens.Check(token)
	if err != nil {
		return nil, err
	}
	gone, err := h.store.Unregister(ctx, checked)
	return h.left(ctx, gone, false, err)
}

// unregisterID handles POST /api/workers/:id/unregister, which the oldest workers send.
func (h *workers) unregisterID(ctx context.Context, id string) (any, error) {
	gone, err := h.store.UnregisterID(ctx, id)
	return h.left(ctx, gone, false, err)
}

func (h *workers) delete(ctx context.Context, id string) (any, error) {
	gone, err := h.store.Delete(ctx, id)
	gone.WorkerID = id
	return h.left(ctx, gone, true, err)
}

// left publishes that a worker is gone and that its builds are pending again.
func (h *workers) left(ctx context.Context, gone store.Departure, deleted bool, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	why := store.LostUnregistered
	if deleted {
		why = store.LostDeleted
	}
	h.requeued(gone.Requeued, why)
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{
		WorkerID: gone.WorkerID, Status: store.Offline, Deleted: deleted, Step: store.Step{What: store.StepGone, TraceID: tracing.ID(ctx)},
	})
	reply := api.Unregistered{Success: true, BuildsReassigned: len(gone.Requeued), Message: "Worker unregistered"}
	if deleted {
		reply.Message = "Worker deleted"
	}
	return reply, nil
}

// requeued publishes that builds are pending again, and why.
func (h *workers) requeued(refs []store.BuildRef, why string) {
	if len(refs) > 0 {
		h.queue.Requeued(refs)
	}
	for _, b := range refs {
		h.publish(store.TopicBuildUpdated, store.Lost(b, store.Pending, why))
	}
}

func (h *workers) list(_ context.Context, c echo.Context) (any, error) {
	f := store.WorkerFilter{Status: store.WorkerStatus(c.QueryParam("status"))}
	switch f.Status {
	case "", store.Idle, store.Busy, store.Offline:
	default:
		return nil, edge.Invalid("Invalid status")
	}
	limit, err := edge.LimitParam(c, maxList, 0)
	if err != nil {
		return nil, err
	}
	read := func(ctx context.Context, last *store.WorkerDetail, n int) ([]store.WorkerDetail, error) {
		if f.Limit = n; last != nil {
			f.After = last.Number
		}
		return h.store.List(ctx, f)
	}
	return edge.ListOf(min(limit, maxList), read, api.NewWorker).In("workers", true), nil
}

func (h *workers) show(ctx context.Context, id string) (any, error) {
	list, err := h.store.List(ctx, store.WorkerFilter{ID: id})
	switch {
	case err != nil:
		return nil, err
	case len(list) == 0:
		return nil, workerNotFound()
	}
	return api.NewWorker(list[0]), nil
}

func (h *workers) stats(ctx context.Context, id string) (any, error) {
	w, err := h.store.Find(ctx, id)
	return api.NewWorkerStats(w, time.Now()), err
}

func (h *workers) drainWith(draining bool) edge.Handler {
	return edge.ByID(workerNotFound, func(ctx context.Context, id string) (any, error) {
		status, err := h.store.Drain(ctx, id, draining)
		if err != nil {
			return nil, err
		}
		if !draining {
			h.queue.Freed(id) // its parked poll may be woken again
		}
		step := store.Step{What: store.StepResumed, TraceID: tracing.ID(ctx)}
		if draining {
			step.What = store.StepDrained
		}
		h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{WorkerID: id, Status: status, Draining: draining, Step: step})
		return h.show(ctx, id)
	})
}
