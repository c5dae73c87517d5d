package http

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// heldBuild reads a request that names a build but need not name a worker: then
// it speaks for the one that holds the build, or held it last.
func (s *Server) heldBuild(ctx context.Context, c echo.Context) (b store.Build, sign store.Sign, message string, err error) {
	var body struct {
		BuildID json.RawMessage `json:"build_id"`
		Error   json.RawMessage `json:"error"`
	}
	if _, err := s.readJSON(c, &body); err != nil {
		return b, sign, "", err
	}
	if absent(body.BuildID) || json.Unmarshal(body.BuildID, &sign.BuildID) != nil || sign.BuildID == "" {
		return b, sign, "", invalid("build_id required")
	}
	if !absent(body.Error) && json.Unmarshal(body.Error, &message) != nil {
		return b, sign, "", invalid("error must be a text")
	}
	if !store.ValidID(sign.BuildID) {
		return b, sign, "", buildNotFound()
	}
	if sign.Attempt, err = attempt(c.Request().Header); err != nil {
		return b, sign, "", err
	}
	if b, err = s.deps.Builds.Find(ctx, sign.BuildID); err != nil {
		return b, sign, "", err
	}
	if sign.WorkerID = b.WorkerID; sign.WorkerID == "" {
		sign.WorkerID = b.LastWorkerID
	}
	if id := c.Request().Header.Get(api.HeaderWorkerID); id != "" { // who says who it is has to be the one
		if !store.ValidID(id) {
			return b, sign, "", store.NewError(store.Forbidden, "Unknown worker")
		}
		sign.WorkerID = id
	}
	if sign.WorkerID == "" && !b.State.Final() {
		return b, sign, "", store.NewError(store.NotAssigned, "Build not assigned to a worker")
	}
	return b, sign, text(message), nil
}

// handleWorkerFail handles POST /api/workers/fail.
func (s *Server) handleWorkerFail(ctx context.Context, c echo.Context) error {
	b, sign, message, err := s.heldBuild(ctx, c)
	if err != nil {
		return err
	}
	if b.State.Final() && b.State != store.Failed {
		return store.NewError(store.Conflict, "Build already finished")
	}
	if b.State != store.Failed { // a repeat changes nothing
		err = s.finish(ctx, b, store.Result{
			BuildID: b.ID, WorkerID: sign.WorkerID, Attempt: sign.Attempt, ErrorMessage: message,
		}, nil)
		if err != nil {
			return err
		}
	}
	return s.reply(c, http.StatusOK, api.Uploaded{Success: true, Status: "failed", Message: "Build marked as failed"})
}

// handleWorkerHeartbeat handles POST /api/workers/heartbeat.
func (s *Server) handleWorkerHeartbeat(ctx context.Context, c echo.Context) error {
	b, sign, _, err := s.heldBuild(ctx, c)
	if err != nil {
		return err
	}
	reply := api.BeatReply{Success: true, HeartbeatReply: api.HeartbeatReply{Status: "ok"}}
	if b.State == store.Cancelled && b.WorkerID == "" {
		reply.Cancelled = true // before anybody had it
	} else {
		beat, err := s.deps.Builds.Heartbeat(ctx, sign)
		if err != nil {
			return err
		}
		s.signed(sign, beat)
		reply.Cancelled = beat.Cancelled
	}
	reply.Timestamp = api.Millis(time.Now().UnixMilli())
	return s.reply(c, http.StatusOK, reply)
}
