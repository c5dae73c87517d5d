package http

import (
	"context"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// build finds the build of the path and checks who asks: the API key opens all
// builds, a build token its own.
func (s *Server) build(ctx context.Context, c echo.Context) (store.Build, error) {
	id := c.Param("id")
	if !store.ValidID(id) {
		return store.Build{}, buildNotFound()
	}
	b, err := s.deps.Builds.Find(ctx, id)
	if err != nil {
		return b, err
	}
	h := c.Request().Header
	if s.apiKey.is(header(h, keyAPI)) {
		return b, nil
	}
	token := header(h, keyBuildToken)
	if token == "" || b.TokenHash.IsZero() || !b.TokenHash.Equal(store.HashToken(token)) {
		return store.Build{}, store.NewError(store.Forbidden, "Invalid or expired build token")
	}
	return b, nil
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// handleBuildStatus handles GET /api/builds/:id/status.
func (s *Server) handleBuildStatus(ctx context.Context, c echo.Context) error {
	b, err := s.build(ctx, c)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, api.BuildStatus{
		ID: b.ID, Status: b.State.Wire(), State: string(b.State), Platform: string(b.Platform),
		WorkerID: optional(b.WorkerID), Attempt: b.Attempt,
		SubmittedAt: api.NewMillis(b.SubmittedAt), StartedAt: api.NewMillis(b.StartedAt),
		CompletedAt: api.NewMillis(b.CompletedAt), ErrorMessage: optional(b.ErrorMessage),
		Priority: b.Priority, Labels: b.Labels,
	})
}

// handleBuildList handles GET /api/builds.
func (s *Server) handleBuildList(ctx context.Context, c echo.Context) error {
	filter, err := s.buildFilter(c)
	if err != nil {
		return err
	}
	builds, err := s.deps.Builds.List(ctx, filter)
	if err != nil {
		return err
	}
	items := make([]api.BuildItem, len(builds))
	for i, b := range builds {
		items[i] = buildItem(b)
	}
	if c.QueryParam("format") == "object" {
		return s.reply(c, http.StatusOK, api.BuildList{Builds: items, Total: len(items)})
	}
	return s.reply(c, http.StatusOK, items)
}

// handleBuildShow handles GET /api/builds/:id.
func (s *Server) handleBuildShow(ctx context.Context, c echo.Context) error {
	b, err := s.build(ctx, c)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, buildItem(b))
}

// handleBuildActive handles GET /api/builds/active.
func (s *Server) handleBuildActive(ctx context.Context, c echo.Context) error {
	builds, err := s.deps.Builds.List(ctx, store.BuildFilter{
		States: []store.BuildState{store.Assigned, store.Building}, Limit: s.cfg.MaxList,
	})
	if err != nil {
		return err
	}
	reply := api.ActiveBuilds{Builds: make([]api.ActiveBuild, len(builds))}
	for i, b := range builds {
		reply.Builds[i] = api.ActiveBuild{
			ID: b.ID, Status: b.State.Wire(), Platform: string(b.Platform), WorkerID: b.WorkerID,
			StartedAt: api.Millis(b.StartedAt.UnixMilli()),
		}
	}
	return s.reply(c, http.StatusOK, reply)
}

func buildItem(b store.Build) api.BuildItem {
	item := api.BuildItem{
		ID: b.ID, Status: b.State.Wire(), State: string(b.State), Platform: string(b.Platform),
		CreatedAt: api.FormatTime(b.SubmittedAt), SubmittedAt: api.FormatTime(b.SubmittedAt),
		UpdatedAt: api.FormatTime(b.UpdatedAt), WorkerID: optional(b.WorkerID), WorkerName: optional(b.WorkerName),
		ErrorMessage: optional(b.ErrorMessage), HasResult: b.Result != nil,
		Labels: b.Labels,
	}
	if !b.CompletedAt.IsZero() {
		item.CompletedAt = api.FormatTime(b.CompletedAt)
	}
	return item
}

func (s *Server) buildFilter(c echo.Context) (store.BuildFilter, error) {
	f := store.BuildFilter{Limit: s.cfg.MaxList, WorkerID: c.QueryParam("worker_id"), Platform: store.Platform(c.QueryParam("platform"))}
	switch v := store.BuildState(c.QueryParam("status")); v {
	case "":
	case store.Failed: // what old clients call failed includes cancelled
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
	if v := c.QueryParam("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return f, invalid("limit must be a positive whole number")
		}
		f.Limit = min(n, f.Limit)
	}
	return f, nil
}

// handleBuildLogs handles GET /api/builds/:id/logs. There is no default limit:
// old clients compare the number of lines with what they have shown.
func (s *Server) handleBuildLogs(ctx context.Context, c echo.Context) error {
	var after int64
	limit := 0
	var err error
	if v := c.QueryParam("after"); v != "" {
		if after, err = strconv.ParseInt(v, 10, 64); err != nil || after < 0 {
			return invalid("after must be a whole number")
		}
	}
	if v := c.QueryParam("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 {
			return invalid("limit must be a positive whole number")
		}
	}
	b, err := s.build(ctx, c)
	if err != nil {
		return err
	}
	lines, err := s.deps.Builds.Logs(ctx, b.ID, after, limit)
	if err != nil {
		return err
	}
	reply := api.Logs{BuildID: b.ID, Logs: make([]api.LogEntry, len(lines))}
	for i, l := range lines {
		reply.Logs[i] = logEntry(l)
	}
	return s.reply(c, http.StatusOK, reply)
}

// handleBuildCancel handles POST /api/builds/:id/cancel.
func (s *Server) handleBuildCancel(ctx context.Context, c echo.Context) error {
	id := c.Param("id")
	if !store.ValidID(id) {
		return buildNotFound()
	}
	if err := s.deps.Builds.Cancel(ctx, id); err != nil {
		return err
	}
	s.deps.Announce.BuildUpdated(store.BuildUpdate{BuildID: id, State: store.Cancelled})
	return s.reply(c, http.StatusOK, api.Cancelled{Status: string(store.Cancelled), Success: true})
}
