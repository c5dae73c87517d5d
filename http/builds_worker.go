package http

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// sign reads who speaks of which build: the worker of X-Worker-Id, of the build
// in the path. The store checks that it holds it.
func (s *Server) sign(c echo.Context) (store.Sign, error) {
	sign := store.Sign{BuildID: c.Param("id"), WorkerID: c.Request().Header.Get(api.HeaderWorkerID)}
	if !store.ValidID(sign.WorkerID) {
		return sign, store.NewError(store.Forbidden, "Unknown worker")
	}
	if !store.ValidID(sign.BuildID) {
		return sign, buildNotFound()
	}
	var err error
	sign.Attempt, err = attempt(c.Request().Header)
	return sign, err
}

// holder is sign for routes on which the worker also says which build it means.
func (s *Server) holder(c echo.Context) (store.Sign, error) {
	sign, err := s.sign(c)
	if err == nil && c.Request().Header.Get(api.HeaderBuildID) != sign.BuildID {
		err = store.NewError(store.Forbidden, "X-Build-Id does not match the build")
	}
	return sign, err
}

// touch records a sign of life.
func (s *Server) touch(ctx context.Context, sign store.Sign) error {
	reply, err := s.deps.Builds.Touch(ctx, sign)
	if err == nil {
		s.signed(sign, reply)
	}
	return err
}

// signed announces what a sign of life has changed.
func (s *Server) signed(sign store.Sign, reply store.SignReply) {
	if reply.Began {
		s.deps.Announce.BuildUpdated(store.BuildUpdate{BuildID: sign.BuildID, State: store.Building, WorkerID: sign.WorkerID})
	}
}

// presence returns a function that gives a sign of life whenever
// PresenceInterval has passed since the last, for as long as bytes move.
func (s *Server) presence(ctx context.Context, sign store.Sign) func(now time.Time) {
	next := time.Now().Add(s.cfg.PresenceInterval)
	return func(now time.Time) {
		if now.Before(next) {
			return
		}
		next = now.Add(s.cfg.PresenceInterval)
		if err := s.touch(ctx, sign); err != nil {
			// Whether the build is still the worker's is decided at the end.
			s.log.Debug().Err(err).Str("build", sign.BuildID).Msg("no sign of life during transfer")
		}
	}
}

// held checks that the worker holds the build, and takes a download as a sign
// of life: the first one makes an assigned build a building one.
func (s *Server) held(ctx context.Context, c echo.Context) (store.Build, download, error) {
	sign, err := s.sign(c)
	if err != nil {
		return store.Build{}, download{}, err
	}
	b, err := s.deps.Builds.Held(ctx, sign)
	if err != nil {
		return b, download{}, err
	}
	if c.Request().Method != http.MethodHead {
		if err := s.touch(ctx, sign); err != nil {
			return b, download{}, err
		}
	}
	return b, download{contentType: "application/zip", moved: s.presence(ctx, sign)}, nil
}

// handleBuildSource handles GET /api/builds/:id/source.
func (s *Server) handleBuildSource(ctx context.Context, c echo.Context) error {
	b, d, err := s.held(ctx, c)
	if err != nil {
		return err
	}
	d.name = b.ID + ".zip"
	return s.sendFile(ctx, c, b.Source, "Source not found", d)
}

// handleBuildCerts handles GET /api/builds/:id/certs.
func (s *Server) handleBuildCerts(ctx context.Context, c echo.Context) error {
	b, d, err := s.held(ctx, c)
	if err != nil {
		return err
	}
	d.name = b.ID + "-certs.zip"
	d.cache = "no-store"
	return s.sendSealed(ctx, c, b.Certs, "Certs not found", d)
}

// handleBuildDownload handles GET /api/builds/:id/download, also with /result
// or /source after it.
func (s *Server) handleBuildDownload(ctx context.Context, c echo.Context) error {
	kind := c.Param("type")
	if kind != "" && kind != string(store.ResultFile) && kind != string(store.SourceFile) {
		return invalid("Invalid file type")
	}
	b, err := s.build(ctx, c)
	if err != nil {
		return err
	}
	if kind == string(store.SourceFile) {
		return s.sendFile(ctx, c, b.Source, "Source not found", download{contentType: "application/zip", name: b.ID + ".zip"})
	}
	if b.State != store.Completed {
		return store.NewError(store.InvalidState, "Build not completed")
	}
	return s.sendFile(ctx, c, b.Result, "Build result not found", download{
		contentType: "application/octet-stream", name: b.ID + b.Platform.ResultExt(),
	})
}

// handleBuildLogsPost handles POST /api/builds/:id/logs.
func (s *Server) handleBuildLogsPost(ctx context.Context, c echo.Context) error {
	sign, err := s.sign(c)
	if err != nil {
		return err
	}
	var body struct {
		Logs    *[]json.RawMessage `json:"logs"`
		Level   *string            `json:"level"`
		Message *string            `json:"message"`
	}
	const shape = "Invalid body. Expected { level, message } or { logs: [...] }"
	present, err := s.readJSON(c, &body)
	if err != nil {
		return err
	}
	reply := api.PostedLogs{Success: true}
	switch {
	case present && body.Logs != nil:
		sign.Logs = logBatch(*body.Logs)
		n := len(sign.Logs)
		reply.Count = &n
	case present && body.Level != nil && body.Message != nil:
		line := store.LogLine{Level: store.Level(*body.Level), Message: text(*body.Message)}
		if !line.Level.Valid() {
			return invalid("Invalid log level. Must be: info, warn, or error")
		}
		sign.Logs = []store.LogLine{line}
	default:
		return invalid(shape)
	}
	if err := s.touch(ctx, sign); err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, reply)
}

// logBatch takes the entries that are log lines and skips the others.
func logBatch(entries []json.RawMessage) []store.LogLine {
	lines := make([]store.LogLine, 0, len(entries))
	for _, e := range entries {
		var m struct {
			Level   store.Level `json:"level"`
			Message *string     `json:"message"`
		}
		if json.Unmarshal(e, &m) != nil || m.Message == nil || !m.Level.Valid() {
			continue
		}
		lines = append(lines, store.LogLine{Level: m.Level, Message: text(*m.Message)})
	}
	return lines
}

// handleBuildHeartbeat handles POST /api/builds/:id/heartbeat.
func (s *Server) handleBuildHeartbeat(ctx context.Context, c echo.Context) error {
	sign := store.Sign{BuildID: c.Param("id"), WorkerID: c.QueryParam("worker_id")}
	if sign.WorkerID == "" {
		return invalid("worker_id required")
	}
	var body api.Heartbeat
	if _, err := s.readJSON(c, &body); err != nil {
		return err
	}
	if !store.ValidID(sign.BuildID) {
		return buildNotFound()
	}
	if !store.ValidID(sign.WorkerID) {
		return store.NewError(store.NotAssigned, "Build not assigned to this worker")
	}
	var err error
	if sign.Attempt, err = attempt(c.Request().Header); err != nil {
		return err
	}
	// A figure that is no percentage is no reason to refuse a sign of life.
	if p := body.Progress; p != nil && *p >= 0 && *p <= 100 {
		sign.Logs = []store.LogLine{{
			Level: store.Info, Message: "Build progress: " + strconv.FormatFloat(*p, 'f', -1, 64) + "%",
		}}
	}
	beat, err := s.deps.Builds.Heartbeat(ctx, sign)
	if err != nil {
		return err
	}
	s.signed(sign, beat)
	return s.reply(c, http.StatusOK, api.HeartbeatReply{
		Status: "ok", Timestamp: api.Millis(time.Now().UnixMilli()), Cancelled: beat.Cancelled,
	})
}
