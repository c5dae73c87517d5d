package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// builds shows and cancels builds, and sends their files to those who submitted them.
type builds struct {
	edge      *edge.Server
	store     Builds
	files     Files
	publish   Publish
	keys      *edge.Keys
	tokenLife time.Duration // see Config.BuildTokenLife
	// perBuild counts the downloads of each build that show only its token.
	perBuild *edge.Share
}

// find finds the build of the path and checks access: the API key opens all builds, a
// build token only its own.
func (h *builds) find(ctx context.Context, c echo.Context) (store.Build, error) {
	id, err := edge.IDParam(c, "id", buildNotFound)
	if err != nil {
		return store.Build{}, err
	}
	b, err := h.store.Find(ctx, id)
	if err != nil {
		return b, err
	}
	sent := c.Request().Header
	if sessionOf(c) != nil || h.keys.API.Is(edge.Header(sent, edge.HeaderAPI)) {
		return b, nil
	}
	token := edge.Header(sent, edge.HeaderBuildToken)
	if token == "" || time.Since(b.SubmittedAt) > h.tokenLife || b.TokenHash.IsZero() || !b.TokenHash.Equal(store.HashToken(token)) {
		return store.Build{}, store.NewError(store.Forbidden, "Invalid or expired build token")
	}
	return b, nil
}

func (h *builds) status(ctx context.Context, c echo.Context) (any, error) {
	b, err := h.find(ctx, c)
	return api.NewBuildStatus(b), err
}

func (h *builds) show(ctx context.Context, c echo.Context) (any, error) {
	b, err := h.find(ctx, c)
	return api.NewBuildItem(b), err
}

func (h *builds) list(_ context.Context, c echo.Context) (any, error) {
	filter, err := h.filter(c)
	if err != nil {
		return nil, err
	}
	items := edge.ListOf(filter.Limit, h.pages(filter), api.NewBuildItem)
	if c.QueryParam("format") == "object" {
		return items.In("builds", true), nil
	}
	return items, nil
}

// pages returns what reads the builds of a list.
func (h *builds) pages(f store.BuildFilter) func(ctx context.Context, last *store.Build, n int) ([]store.Build, error) {
	return func(ctx context.Context, last *store.Build, n int) ([]store.Build, error) {
		if f.Limit = n; last != nil {
			f.Before = last.Seq
		}
		return h.store.List(ctx, f)
	}
}

func (h *builds) filter(c echo.Context) (store.BuildFilter, error) {
	f := store.BuildFilter{WorkerID: c.QueryParam("worker_id"), Platform: store.Platform(c.QueryParam("platform"))}
	switch v := store.BuildState(c.QueryParam("status")); v {
	case "":
	case store.Failed: // for old clients, failed includes cancelled
		f.States = []store.BuildState{store.Failed, store.Cancelled}
	case store.Pending, store.Assigned, store.Building, store.Completed, store.Cancelled:
		f.States = []store.BuildState{v}
	default:
		return f, edge.Invalid("Invalid status")
	}
	if f.Platform != "" && !f.Platform.Valid() {
		return f, edge.Invalid("Valid platform required (ios|android)")
	}
	if f.WorkerID != "" && !store.ValidID(f.WorkerID) {
		return f, edge.Invalid("Invalid worker_id")
	}
	limit, err := edge.LimitParam(c, maxList, 0)
	f.Limit = min(limit, maxList)
	return f, err
}

func (h *builds) active(context.Context, echo.Context) (any, error) {
	held := h.pages(store.BuildFilter{States: []store.BuildState{store.Assigned, store.Building}})
	return edge.ListOf(maxList, held, api.NewActiveBuild).In("builds", false), nil
}

// serveDownload waits for a turn before download. Who shows only a build's token is limited
// by build and by address, apart from those who show a right key.
func (h *builds) serveDownload(c echo.Context, r *edge.Route) error {
	if h.keys.API.Is(edge.Header(c.Request().Header, edge.HeaderAPI)) {
		return h.edge.Transfer(c, r)
	}
	id := c.Param("id")
	held, err := h.perBuild.Take(id, false, nil)
	if err != nil {
		return err
	}
	defer h.perBuild.GiveBack(id, held)
	return edge.InTurn(c, h.edge.Guests, h.edge.Addr(c), func() error { return h.edge.Admit(c, r) })
}

// download handles GET /api/builds/:id/download, and the same with /result or /source
// appended.
func (h *builds) download(ctx context.Context, c echo.Context) (any, error) {
	kind := c.Param("type")
	if kind != "" && kind != string(store.ResultFile) && kind != string(store.SourceFile) {
		return nil, edge.Invalid("Invalid file type")
	}
	b, err := h.find(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case kind == string(store.SourceFile):
		return sendFile(ctx, h.edge, c, h.files, b.Source, "Source not found", edge.Download{ContentType: "application/zip", Name: b.ID + ".zip"})
	case b.State != store.Completed:
		return nil, store.NewError(store.InvalidState, "Build not completed")
	}
	return sendFile(ctx, h.edge, c, h.files, b.Result, "Build result not found", edge.Download{
		ContentType: "application/octet-stream", Name: b.ID + b.Platform.ResultExt(),
	})
}

// took returns how long the last attempt of b has taken; 0 before the first.
func took(b store.Build) time.Duration {
	if b.StartedAt.IsZero() {
		return 0
	}
	return time.Since(b.StartedAt)
}

func (h *builds) cancel(ctx context.Context, id string) (any, error) {
	if err := h.store.Cancel(ctx, id); err != nil {
		return nil, err
	}
	u := store.BuildUpdate{BuildID: id, State: store.Cancelled, Step: store.Step{What: store.StepEnded}}
	if b, err := h.store.Find(ctx, id); err == nil { // otherwise the event just says less
		u.Platform, u.WorkerID = b.Platform, b.WorkerID
		u.Step.Attempt, u.Step.Took, u.Was = b.Attempt, took(b), b.Ref()
	}
	h.publish(store.TopicBuildUpdated, u)
	return api.Cancelled{Status: string(store.Cancelled), Success: true}, nil
}
