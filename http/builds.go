package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// builds shows and cancels builds, and sends their files to those who submitted them.
type builds struct {
	*shared
	store   Builds
	files   Files
	publish Publish
	keys    *keys
}

// find finds the build of the path and checks access: the API key opens all builds, a
// build token only its own.
func (h *builds) find(ctx context.Context, c echo.Context) (store.Build, error) {
	id, err := idParam(c, "id", buildNotFound)
	if err != nil {
		return store.Build{}, err
	}
	b, err := h.store.Find(ctx, id)
	if err != nil {
		return b, err
	}
	sent := c.Request().Header
	if sessionOf(c) != nil || h.keys.api.is(header(sent, keyAPI)) {
		return b, nil
	}
	token := header(sent, keyBuildToken)
	if token == "" || time.Since(b.SubmittedAt) > h.cfg.BuildTokenLife || b.TokenHash.IsZero() || !b.TokenHash.Equal(store.HashToken(token)) {
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
	items := listOf(filter.Limit, h.pages(filter), api.NewBuildItem)
	if c.QueryParam("format") == "object" {
		return items.in("builds", true), nil
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
		return f, invalid("Invalid status")
	}
	if f.Platform != "" && !f.Platform.Valid() {
		return f, invalid("Valid platform required (ios|android)")
	}
	if f.WorkerID != "" && !store.ValidID(f.WorkerID) {
		return f, invalid("Invalid worker_id")
	}
	limit, err := limitParam(c, maxList, 0)
	f.Limit = min(limit, maxList)
	return f, err
}

func (h *builds) active(context.Context, echo.Context) (any, error) {
	held := h.pages(store.BuildFilter{States: []store.BuildState{store.Assigned, store.Building}})
	return listOf(maxList, held, api.NewActiveBuild).in("builds", false), nil
}

// serveDownload waits for a turn before download. Who shows only a build's token is limited
// by build and by address, apart from those who show a right key.
func (h *builds) serveDownload(c echo.Context, r *route) error {
	if h.keys.api.is(header(c.Request().Header, keyAPI)) {
		return h.transfer(c, r)
	}
	id := c.Param("id")
	held, err := h.perBuild.take(id, false, nil)
	if err != nil {
		return err
	}
	defer h.perBuild.giveBack(id, held)
	return inTurn(c, h.guests, h.addr(c), func() error { return h.admit(c, r) })
}

// download handles GET /api/builds/:id/download, and the same with /result or /source
// appended.
func (h *builds) download(ctx context.Context, c echo.Context) (any, error) {
	kind := c.Param("type")
	if kind != "" && kind != string(store.ResultFile) && kind != string(store.SourceFile) {
		return nil, invalid("Invalid file type")
	}
	b, err := h.find(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case kind == string(store.SourceFile):
		return h.sendFile(ctx, c, h.files, b.Source, download{missing: "Source not found", contentType: "application/zip", name: b.ID + ".zip"})
	case b.State != store.Completed:
		return nil, store.NewError(store.InvalidState, "Build not completed")
	}
	return h.sendFile(ctx, c, h.files, b.Result, download{
		missing: "Build result not found", contentType: "application/octet-stream", name: b.ID + b.Platform.ResultExt(),
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
