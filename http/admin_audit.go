package http

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	// auditPatience is how long an action waits for its entry to be written. It is short
	// because the action may be the repair of the database.
	auditPatience = 2 * time.Second
	// auditEffort is how long takt tries to write an outcome.
	auditEffort = 10 * time.Minute
)

var errSlowAudit = errors.New("the audit was not written in time")

// audit records what operators do, and shows it.
type audit struct {
	edge       *edge.Server
	keys       *edge.Keys
	store      Audit
	background func(run func(ctx context.Context))
	auditor    Auditor
	repairs    func(ctx context.Context) ([]store.Invariant, error)
}

func (h *audit) routes() []edge.Route {
	return []edge.Route{
		edge.OnList(h.edge, api.ShowAudit, h.list),
		edge.On(h.edge, api.CheckInvariants, h.check),
		edge.On(h.edge, api.RepairInvariants, h.repair),
	}
}

// list shows what operators did, newest first.
func (h *audit) list(_ context.Context, in api.ShowAuditIn) (edge.List, error) {
	read := func(ctx context.Context, p store.Page) ([]store.AuditEntry, store.Cursor, error) {
		return h.store.List(ctx, "", p)
	}
	return edge.ListOf(in.Limit, in.Cursor, read, api.NewAuditEntry).In("entries", false), nil
}

// check shows which invariants of the database hold and which do not.
func (h *audit) check(ctx context.Context, _ api.None) (api.Invariants, error) {
	found, err := h.auditor.Check(ctx)
	return api.Invariants{Invariants: found}, err
}

// repair checks the invariants and makes the repairs that lose no data.
func (h *audit) repair(ctx context.Context, in api.Order) (reply api.Invariants, err error) {
	err = h.do(ctx, entry{"repair", "database", in.Reason, change(nil)}, func(ctx context.Context) (err error) {
		reply.Invariants, err = h.repairs(ctx)
		return err
	})
	h.background(func(ctx context.Context) {
		_, _ = h.auditor.Check(ctx) // so that the metrics show it now, and not in a minute
	})
	return reply, err
}

// entry is an operator's action with its target and reason.
type entry struct {
	action, target, reason string
	detail                 map[string]any
}

// change is the detail of an entry that sets something to body.
func change(body any) map[string]any { return map[string]any{"change": body} }

// auditedKey marks the context of an action that has its entry.
type auditedKey struct{}

// do runs act and writes an entry before it and its outcome after it. What is a part of
// an audited action gets no separate entry.
func (h *audit) do(ctx context.Context, what entry, act func(ctx context.Context) error) error {
	if ctx.Value(auditedKey{}) != nil {
		return act(ctx)
	}
	ctx = context.WithValue(ctx, auditedKey{}, true)
	e := h.begin(ctx, what)
	err := act(ctx)
	if !h.conclude(ctx, e, err) {
		h.background(func(ctx context.Context) { h.concludeLater(ctx, e) })
	}
	return err
}

// begin writes an entry before its action. If that fails, the action continues, because the
// log has the entry and conclude writes all of it.
func (h *audit) begin(ctx context.Context, what entry) *store.AuditEntry {
	caller := edge.CallerOf(ctx)
	what.detail["request_id"] = caller.RequestID
	if s := caller.Session; s != nil {
		what.detail["role"], what.detail["session"] = s.Role, s.ID
	}
	detail, err := json.Marshal(what.detail)
	if err != nil {
		detail = nil // impossible: plain values
	}
	e := &store.AuditEntry{
		At: time.Now(), Actor: caller.Actor(), Action: what.action, Target: what.target, Reason: what.reason, Detail: detail,
	}
	ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
	defer cancel()
	level := zerolog.InfoLevel
	if e.ID, err = h.store.Append(ctx, *e); err != nil {
		level = zerolog.WarnLevel
	}
	h.edge.Log.WithLevel(level).Err(err).Int64("audit", e.ID).Str("actor", e.Actor).Str("action", e.Action).Str("target", e.Target).
		Str("reason", e.Reason).RawJSON("detail", e.Detail).Msg("operator")
	return e
}

// conclude writes how the action ended. It reports whether the write succeeded.
func (h *audit) conclude(ctx context.Context, e *store.AuditEntry, failed error) bool {
	e.Outcome = "done"
	if failed != nil {
		e.Outcome = edge.FailureOf(failed).Message
	}
	h.edge.Log.Info().Int64("audit", e.ID).AnErr("cause", failed).Str("outcome", e.Outcome).Msg("operator's action ended")
	return h.writeOutcome(ctx, e) == nil
}

func (h *audit) writeOutcome(ctx context.Context, e *store.AuditEntry) error {
	ctx, cancel := context.WithTimeoutCause(ctx, auditPatience, errSlowAudit)
	defer cancel()
	if e.ID != 0 {
		return h.store.Conclude(ctx, e.ID, e.Outcome)
	}
	_, err := h.store.Append(ctx, *e)
	return err
}

// concludeLater retries while the database is unavailable.
func (h *audit) concludeLater(ctx context.Context, e *store.AuditEntry) {
	ctx, cancel := context.WithTimeoutCause(ctx, auditEffort, errSlowAudit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if h.writeOutcome(ctx, e) == nil {
				return
			}
		case <-ctx.Done():
			h.edge.Log.Error().Err(context.Cause(ctx)).Int64("audit", e.ID).Str("outcome", e.Outcome).Msg("outcome of an audited action not recorded")
			return
		}
	}
}
