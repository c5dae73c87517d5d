package http

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// ownOnly returns the name of the caller's key if it reaches only the builds that it submitted; ""
// if it has scope, or is no key with a name.
func ownOnly(ctx context.Context, scope store.Scope) string {
	if k := edge.CallerOf(ctx).Key; k != nil && !k.May(scope) {
		return k.Name
	}
	return ""
}

// selected returns the newest builds that a caller may change and that are in one of the states, up
// to the limit, and whether there are more.
func (h *builds) selected(ctx context.Context, in api.SeveralBuilds, f store.BuildFilter) (ids []string, more bool, err error) {
	if in.Platform != "" && !slices.Contains(h.platforms, store.Platform(in.Platform)) {
		return nil, false, wrongPlatform(h.platforms)
	}
	f.Labels, f.Platform, f.Submitter = in.Label.Labels(), store.Platform(in.Platform), ownOnly(ctx, store.ScopeOperate)
	found, next, err := h.store.List(ctx, f, store.Page{Limit: in.Limit})
	return edge.Each(found, func(b store.Build) string { return b.ID }), next != "", err
}

// several changes builds one by one, as the endpoint for one does, with one entry in the audit.
func (h *builds) several(ctx context.Context, action string, in api.SeveralBuilds, ids []string, change func(ctx context.Context, b *api.OneChanged) error) (all []api.OneChanged) {
	all = make([]api.OneChanged, len(ids))
	what := entry{action, "builds with labels", in.Reason, map[string]any{"labels": in.Label.Labels(), "builds": ids}}
	if len(in.Label) == 0 {
		what.target = "builds of a suspect"
	}
	act := func(ctx context.Context) error {
		failed := 0
		for i, id := range ids {
			all[i].ID = id
			if err := change(ctx, &all[i]); err != nil {
				problem, _ := edge.ProblemOf(err, "")
				all[i].Code, all[i].Error = problem.Code, problem.Detail
				failed++
			}
		}
		if failed > 0 {
			return store.NewError(store.Conflict, strconv.Itoa(failed)+" of "+strconv.Itoa(len(ids))+" failed")
		}
		return nil
	}
	if len(ids) > 0 {
		_ = h.audit.do(ctx, what, act) // the reply has each build's error
	}
	return all
}

// cancelSeveral cancels builds that wait first, so that no worker takes one while others are
// cancelled.
func (h *builds) cancelSeveral(ctx context.Context, in api.CancelBuildsIn) (reply api.SeveralChanged, err error) {
	var ids []string
	for _, states := range [][]store.BuildState{{store.Pending}, {store.Assigned, store.Building}} {
		if in.State != "" {
			if !slices.Contains(states, store.BuildState(in.State)) {
				continue
			}
			states = []store.BuildState{store.BuildState(in.State)}
		}
		some, more, err := h.selected(ctx, in.SeveralBuilds, store.BuildFilter{States: states})
		if err != nil {
			return reply, err
		}
		for _, id := range some {
			if !slices.Contains(ids, id) { // a worker may have taken it between the two lists
				ids = append(ids, id)
			}
		}
		reply.More = reply.More || more
	}
	if len(ids) > in.Limit {
		ids, reply.More = ids[:in.Limit], true
	}
	reply.Builds = h.several(ctx, "cancel", in.SeveralBuilds, ids, func(ctx context.Context, b *api.OneChanged) error {
		_, err := h.cancel(ctx, api.CancelBuildIn{ID: api.BuildID(b.ID), Why: in.Why})
		return err
	})
	return reply, nil
}

func (h *submissions) retrySeveral(ctx context.Context, in api.RetryBuildsIn) (reply api.SeveralChanged, err error) {
	f := store.BuildFilter{States: []store.BuildState{store.BuildState(cmp.Or(in.State, string(store.Failed)))}, Unretried: true, Suspect: in.Suspect != "", WorkerID: in.Suspect}
	ids, more, err := h.builds.selected(ctx, in.SeveralBuilds, f)
	if err != nil {
		return reply, err
	}
	all := h.builds.several(ctx, "retry", in.SeveralBuilds, ids, func(ctx context.Context, b *api.OneChanged) error {
		made, err := h.retry(ctx, api.RetryBuildIn{BuildAccess: api.BuildAccess{ID: api.BuildID(b.ID)}})
		if err == nil {
			b.Retry = &made
		}
		return err
	})
	return api.SeveralChanged{Builds: all, More: more}, nil
}
