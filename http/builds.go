package http

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

// builds shows builds, sends their files to those who submitted them, and changes them.
type builds struct {
	edge      *edge.Server
	audit     *audit
	store     Builds
	files     Files
	queue     Queue
	forecast  *forecast.Reader
	publish   Publish
	tokenLife time.Duration    // see Config.BuildTokenLife
	platforms []store.Platform // see Config.Platforms
}

func newBuilds(s *edge.Server, audit *audit, cfg Config, d Deps) *builds {
	return &builds{
		edge: s, audit: audit, store: d.Builds, files: d.Files, queue: d.Queue, forecast: d.Forecast, publish: d.Publish, tokenLife: cfg.BuildTokenLife,
		platforms: cfg.Platforms,
	}
}

func (h *builds) routes() []edge.Route {
	result, file := edge.OnRequest(h.edge, api.DownloadResult, h.download), edge.OnRequest(h.edge, api.DownloadFile, h.download)
	result.Serve, file.Serve = h.serveDownload, h.serveDownload
	return []edge.Route{
		result,
		file,
		edge.OnList(h.edge, api.ListBuilds, h.list),
		edge.OnList(h.edge, api.ListActiveBuilds, h.active),
		edge.On(h.edge, api.ShowBuild, h.showTo),
		edge.On(h.edge, api.ShowBuildStatus, h.status),
		h.explained(edge.OnRequest(h.edge, api.ExplainWait, h.why)),
		h.explained(edge.OnRequest(h.edge, api.ShowTimeline, h.timeline)),
		edge.On(h.edge, api.PatchBuild, h.patch),
		edge.On(h.edge, api.CancelBuild, h.cancel),
		edge.On(h.edge, api.CancelBuilds, h.cancelSeveral),
		edge.On(h.edge, api.RequeueBuild, h.requeue),
	}
}

// find finds a build and checks access: the API key and a session open all builds, a key with a
// name those that it submitted or, with scope, all, and a build token only its own.
func (h *builds) find(ctx context.Context, in api.BuildAccess, scope store.Scope) (store.Build, error) {
	b, err := h.store.Find(ctx, string(in.ID))
	if err != nil {
		return b, err
	}
	caller, token := edge.CallerOf(ctx), in.Token
	if caller.APIKey || caller.Session != nil || caller.Key != nil {
		if err = caller.Needs(scope, b.Submitter); err == nil {
			return b, nil
		}
		if token == "" {
			return store.Build{}, err
		}
	}
	if token == "" || time.Since(b.SubmittedAt) > h.tokenLife || b.TokenHash.IsZero() || !b.TokenHash.Equal(store.HashToken(token)) {
		return store.Build{}, store.NewError(store.Forbidden, "Invalid or expired build token")
	}
	return b, nil
}

func (h *builds) status(ctx context.Context, in api.BuildAccess) (api.BuildStatus, error) {
	b, err := h.find(ctx, in, store.ScopeRead)
	return api.NewBuildStatus(b), err
}

// showTo is show for a caller whose key may have to be checked.
func (h *builds) showTo(ctx context.Context, in api.BuildPath) (api.BuildItem, error) {
	b, err := h.find(ctx, api.BuildAccess{ID: in.ID}, store.ScopeRead)
	return api.NewBuildItem(b), err
}

func (h *builds) show(ctx context.Context, in api.BuildPath) (api.BuildItem, error) {
	b, err := h.store.Find(ctx, string(in.ID))
	return api.NewBuildItem(b), err
}

func (h *builds) list(ctx context.Context, in api.BuildFilter) (edge.List, error) {
	if in.Platform != "" && !slices.Contains(h.platforms, store.Platform(in.Platform)) {
		return edge.List{}, wrongPlatform(h.platforms)
	}
	f := store.BuildFilter{
		WorkerID: in.WorkerID, Platform: store.Platform(in.Platform), Text: in.Q, Labels: in.Label.Labels(), Submitter: ownOnly(ctx, store.ScopeRead),
	}
	switch v := store.BuildState(cmp.Or(in.State, in.Status)); {
	case v == "":
	case v == store.Failed && in.State == "": // for old clients, failed includes cancelled
		f.States = []store.BuildState{store.Failed, store.Cancelled}
	default:
		f.States = []store.BuildState{v}
	}
	items := edge.ListOf(in.Limit, in.Cursor, h.pages(f), api.NewBuildItem)
	if in.Format == "object" {
		return items.In("builds", true), nil
	}
	return items, nil
}

// pages returns what reads the builds of a list.
func (h *builds) pages(f store.BuildFilter) func(ctx context.Context, p store.Page) ([]store.Build, store.Cursor, error) {
	return func(ctx context.Context, p store.Page) ([]store.Build, store.Cursor, error) {
		return h.store.List(ctx, f, p)
	}
}

func (h *builds) active(_ context.Context, in api.Paging) (edge.List, error) {
	held := h.pages(store.BuildFilter{States: []store.BuildState{store.Assigned, store.Building}})
	return edge.ListOf(in.Limit, in.Cursor, held, api.NewActiveBuild).In("builds", false), nil
}

// serveDownload limits the downloads of a build by those who show only its token.
func (h *builds) serveDownload(c echo.Context, r *edge.Route) error {
	admit := func() error { return h.edge.Admit(c, r) }
	if h.edge.Keys.Shown(c.Request().Header) {
		return admit()
	}
	part := c.Param("id")
	if !store.ValidID(part) { // no build has it; all such requests share one place
		part = "-"
	}
	return h.edge.Limit(edge.RuleDownloads).Do(c.Request().Context(), store.Share{Part: part}, admit)
}

// fileOfBuild is the input of both downloads. A wrong type is reported before a wrong id.
type fileOfBuild struct {
	Type string `path:"type" enum:"source,result" invalid:"Invalid file type"`
	api.BuildAccess
}

func (h *builds) download(ctx context.Context, c echo.Context, in fileOfBuild) (any, error) {
	b, err := h.find(ctx, in.BuildAccess, store.ScopeRead)
	switch {
	case err != nil:
		return nil, err
	case in.Type == string(store.SourceFile):
		return sendFile(ctx, h.edge, c, h.files, b.Source, "Source not found", edge.Download{ContentType: "application/zip", Name: b.ID + ".zip"})
	case b.State != store.Completed:
		return nil, store.NewError(store.InvalidState, "Build not completed")
	}
	return sendFile(ctx, h.edge, c, h.files, b.Result, "Build result not found", edge.Download{
		ContentType: "application/octet-stream", Name: b.ID + b.Platform.ResultExt(resultOf(b)),
	})
}

// resultOf returns the name of b's result in storage, "" if there is none.
func resultOf(b store.Build) string {
	if b.Result == nil {
		return ""
	}
	return b.Result.Name
}

// took returns how long the last attempt of b has taken; 0 before the first.
func took(b store.Build) time.Duration {
	if b.StartedAt.IsZero() {
		return 0
	}
	return time.Since(b.StartedAt)
}

func (h *builds) cancel(ctx context.Context, in api.CancelBuildIn) (reply api.Cancelled, err error) {
	id := string(in.ID)
	if edge.CallerOf(ctx).Key != nil {
		if _, err := h.find(ctx, api.BuildAccess{ID: in.ID}, store.ScopeOperate); err != nil {
			return reply, err
		}
	}
	err = h.audit.do(ctx, entry{"cancel", "build/" + id, in.Reason, map[string]any{}}, func(ctx context.Context) error {
		return h.store.Cancel(ctx, id, edge.CallerOf(ctx).Name(), in.Reason)
	})
	if err != nil {
		return reply, err
	}
	u := store.BuildUpdate{BuildID: id, State: store.Cancelled, Step: store.Step{What: store.StepEnded}}
	if b, err := h.store.Find(ctx, id); err == nil { // otherwise the event just says less
		u.Platform, u.WorkerID = b.Platform, b.WorkerID
		u.Step.Attempt, u.Step.Took, u.Was = b.Attempt, took(b), b.Ref()
	}
	h.publish(store.TopicBuildUpdated, u)
	return api.Cancelled{Status: string(store.Cancelled), Success: true}, nil
}

// patch sets the priority of a pending build. A parked poll may get the build at once.
func (h *builds) patch(ctx context.Context, in api.PatchBuildIn) (reply api.BuildItem, err error) {
	if in.Body.Priority == nil {
		return reply, edge.Invalid("priority required")
	}
	if p := *in.Body.Priority; p < store.MinPriority || p > store.MaxPriority {
		return reply, edge.Invalid("priority must be -10 to 10")
	}
	var ref store.BuildRef
	what := entry{"priority", "build/" + string(in.ID), in.Body.Reason, change(map[string]any{"priority": *in.Body.Priority})}
	err = h.audit.do(ctx, what, func(ctx context.Context) (err error) {
		ref, err = h.store.SetPriority(ctx, string(in.ID), *in.Body.Priority)
		return err
	})
	if err != nil {
		return reply, err
	}
	h.queue.Requeued([]store.BuildRef{ref})
	h.publish(store.TopicBuildUpdated, store.BuildUpdate{BuildID: ref.ID, State: store.Pending, Platform: ref.Platform})
	return h.show(ctx, api.BuildPath{ID: in.ID})
}

// requeue makes an assigned or running build pending again, for an operator whose worker is
// stuck. The worker learns of it when another one has the build. One that waits for its retry
// waits no longer.
func (h *builds) requeue(ctx context.Context, in api.RequeueBuildIn) (reply api.BuildItem, err error) {
	what := entry{"requeue", "build/" + string(in.ID), in.Body.Reason, change(nil)}
	err = h.audit.do(ctx, what, func(ctx context.Context) error {
		ref, err := h.store.Requeue(ctx, string(in.ID))
		if err == nil {
			h.queue.Requeued([]store.BuildRef{ref})
			u := store.Lost(ref, store.Pending, store.LostRequeued)
			if ref.Attempt == 0 { // it waited for its retry
				u = store.BuildUpdate{BuildID: ref.ID, State: store.Pending, Platform: ref.Platform}
			}
			h.publish(store.TopicBuildUpdated, u)
		}
		return err
	})
	if err != nil {
		return reply, err
	}
	return h.show(ctx, api.BuildPath{ID: in.ID})
}
