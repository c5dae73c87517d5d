package http

import (
	"cmp"
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
	audit     *audit
	baseImage string
	store     Workers
	tokens    *store.WorkerTokens
	queue     Queue
	publish   Publish
	keys      Keys
	bindings  *bindings
	quota     *edge.Quota // of registrations, per remote address; nil: no limit
}

func newWorkers(s *edge.Server, audit *audit, cfg Config, d Deps, bound *bindings) *workers {
	return &workers{s, audit, cfg.BaseImageID, d.Workers, d.Tokens, d.Queue, d.Publish, d.Keys, bound, edge.NewQuota("register", cfg.RegisterRate)}
}

func (h *workers) routes() []edge.Route {
	register := edge.OnAs(h.edge, api.RegisterWorker, h.register)
	register.Serve = h.serveRegister
	return []edge.Route{
		register,
		edge.On(h.edge, api.UnregisterWorker, h.unregister),
		edge.On(h.edge, api.UnregisterWorkerByID, h.unregisterID),
		edge.On(h.edge, api.WorkerLeaves, h.leaving),
		edge.OnList(h.edge, api.ListWorkers, h.list),
		edge.On(h.edge, api.ShowWorker, h.show),
		edge.On(h.edge, api.ShowWorkerStats, h.stats),
		edge.On(h.edge, api.DrainWorker, h.drain),
		edge.On(h.edge, api.ResumeWorker, h.resume),
		edge.On(h.edge, api.DeleteWorker, h.delete),
	}
}

// serveRegister runs a registration, unless its address has sent too many.
func (h *workers) serveRegister(c echo.Context, r *edge.Route) error {
	if err := h.quota.Admit(c.Response().Header(), h.edge.Addr(c)); err != nil {
		return err
	}
	return h.edge.Levelled(c, r)
}

// registration is a body whose members may have any type, because the errors that old
// clients look for name the members.
type registration struct {
	ID           json.RawMessage `json:"id"`
	Name         json.RawMessage `json:"name"`
	Capabilities json.RawMessage `json:"capabilities"`
	ActiveBuilds json.RawMessage `json:"active_builds"`
	Instance     json.RawMessage `json:"instance"`
	Registration json.RawMessage `json:"registration"`
}

func (h *workers) register(ctx context.Context, in registration) (reply api.Registered, err error) {
	reg, err := store.ParseRegistration(in.ID, in.Name, in.Capabilities, in.ActiveBuilds, in.Instance, in.Registration)
	if err != nil {
		return reply, err
	}
	if k := edge.CallerOf(ctx).Key; k.Binds() {
		reg.ID, reg.Instance = cmp.Or(reg.ID, k.Worker), cmp.Or(reg.Instance, store.UnnamedInstance)
		if k.Worker == "" {
			reg.Key = k.Name
		}
		if err := k.Of(reg.ID); err != nil {
			return reply, err
		}
	}
	if reg.ID == "" {
		reg.ID = store.NewID()
	}
	if err := h.tokens.Ready(); err != nil { // checked first, so that no worker is registered without a token
		return reply, err
	}
	known, err := h.store.Register(ctx, reg)
	if store.CodeOf(err) == store.DuplicateWorker {
		return reply, h.conflict(ctx, reg, edge.CallerOf(ctx).Addr, err)
	}
	if err != nil {
		return reply, fmt.Errorf("registering worker %s: %w", reg.ID, err)
	}
	if reg.Key != "" {
		_ = h.keys.Refresh(ctx) // after an error, the actor does it
	}
	h.edge.Belongs(edge.CallerOf(ctx), reg.ID)
	reply = api.Registered{
		ID: reg.ID, AccessToken: h.tokens.Issue(known.Token), Status: "registered",
		Message: "Worker registered", BaseImageID: h.baseImage, Features: reg.Features,
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

func (h *workers) unregister(ctx context.Context, in api.UnregisterIn) (api.Unregistered, error) {
	checked, err := h.checked(ctx, in)
	if err != nil {
		return api.Unregistered{}, err
	}
	gone, err := h.store.Unregister(ctx, checked)
	return h.left(ctx, gone, false, err)
}

// checked checks a worker's token, and that its key may be that worker.
func (h *workers) checked(ctx context.Context, in api.UnregisterIn) (token store.WorkerToken, err error) {
	if in.Token == "" {
		return token, store.NewError(store.Unauthorized, "Missing X-Worker-Token header")
	}
	if token, err = h.tokens.Check(in.Token); err == nil {
		err = h.bindings.check(ctx, edge.CallerOf(ctx).Key, token)
	}
	return token, err
}

func (h *workers) leaving(ctx context.Context, in api.UnregisterIn) (api.Status, error) {
	token, err := h.checked(ctx, in)
	if err != nil {
		return api.Status{}, err
	}
	id, status, err := h.store.Leaving(ctx, token)
	if err == nil {
		h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{WorkerID: id, Status: status})
	}
	return api.Status{Status: store.WorkerLeaving}, err
}

// unregisterID is for the oldest workers.
func (h *workers) unregisterID(ctx context.Context, in api.WorkerPath) (api.Unregistered, error) {
	instance := ""
	if k := edge.CallerOf(ctx).Key; k.Binds() {
		if err := k.Of(string(in.ID)); err != nil {
			return api.Unregistered{}, err
		}
		instance = store.UnnamedInstance // these workers have no name for their processes
	}
	gone, err := h.store.UnregisterID(ctx, string(in.ID), instance)
	return h.left(ctx, gone, false, err)
}

func (h *workers) delete(ctx context.Context, in api.DeleteWorkerIn) (reply api.Unregistered, err error) {
	err = h.audited(ctx, "delete", in.ID, in.Reason, func(ctx context.Context) error {
		gone, err := h.store.Delete(ctx, string(in.ID))
		if err == nil {
			_ = h.keys.Refresh(ctx) // its own is free; after an error, the actor does it
		}
		gone.WorkerID = string(in.ID)
		reply, err = h.left(ctx, gone, true, err)
		return err
	})
	return reply, err
}

// left publishes that a worker is gone and that its builds are pending again.
func (h *workers) left(ctx context.Context, gone store.Departure, deleted bool, err error) (reply api.Unregistered, _ error) {
	if err != nil {
		return reply, err
	}
	why := store.LostUnregistered
	if deleted {
		why = store.LostDeleted
	}
	h.requeued(gone.Requeued, why)
	h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{
		WorkerID: gone.WorkerID, Status: store.Offline, Deleted: deleted, Step: store.Step{What: store.StepGone, TraceID: tracing.ID(ctx)},
	})
	reply = api.Unregistered{Success: true, BuildsReassigned: len(gone.Requeued), Message: "Worker unregistered"}
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

func (h *workers) list(_ context.Context, in api.WorkerFilter) (edge.List, error) {
	f := store.WorkerFilter{Status: store.WorkerStatus(in.Status), State: in.State}
	read := func(ctx context.Context, p store.Page) ([]store.WorkerDetail, store.Cursor, error) {
		return h.store.List(ctx, f, p)
	}
	return edge.ListOf(in.Limit, in.Cursor, read, api.NewWorker).In("workers", true), nil
}

func (h *workers) show(ctx context.Context, in api.WorkerPath) (api.Worker, error) {
	w, err := h.store.Show(ctx, string(in.ID))
	return api.NewWorker(w), err
}

func (h *workers) stats(ctx context.Context, in api.WorkerPath) (api.WorkerStats, error) {
	w, err := h.store.Show(ctx, string(in.ID))
	return api.NewWorkerStats(w.Worker, time.Now()), err
}

// audited records do's action on a worker under the worker's name, which is clearer than its id.
func (h *workers) audited(ctx context.Context, action string, id api.WorkerID, reason string, do func(ctx context.Context) error) error {
	w, err := h.store.Show(ctx, string(id))
	if err != nil {
		return err
	}
	return h.audit.do(ctx, entry{action, "worker/" + w.ID, reason, map[string]any{"name": w.Name}}, do)
}

func (h *workers) drain(ctx context.Context, in api.WorkerOrder) (api.Worker, error) {
	return h.setDraining(ctx, in, "drain", store.StepDrained)
}

func (h *workers) resume(ctx context.Context, in api.WorkerOrder) (api.Worker, error) {
	return h.setDraining(ctx, in, "resume", store.StepResumed)
}

func (h *workers) setDraining(ctx context.Context, in api.WorkerOrder, action, step string) (reply api.Worker, err error) {
	id, draining := string(in.ID), step == store.StepDrained
	err = h.audited(ctx, action, in.ID, in.Body.Reason, func(ctx context.Context) error {
		status, err := h.store.Drain(ctx, id, draining)
		if err != nil {
			return err
		}
		if !draining {
			h.queue.Able(id) // its parked poll may be woken again
		}
		h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{
			WorkerID: id, Status: status, Draining: draining, Step: store.Step{What: step, TraceID: tracing.ID(ctx)},
		})
		reply, err = h.show(ctx, api.WorkerPath{ID: in.ID})
		return err
	})
	return reply, err
}
