package http

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

func (h *holders) logs(ctx context.Context, c echo.Context) (any, error) {
	beat, err := beatOf(c)
	if err != nil {
		return nil, err
	}
	var body struct {
		Logs    *[]json.RawMessage `json:"logs"`
		Level   *string            `json:"level"`
		Message *string            `json:"message"`
	}
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	}
	reply := api.PostedLogs{Success: true}
	switch {
	case body.Logs != nil:
		beat.Logs = logBatch(*body.Logs)
		n := len(beat.Logs)
		reply.Count = &n
	case body.Level != nil && body.Message != nil:
		line := store.LogLine{Level: store.Level(*body.Level), Message: store.Text(*body.Message)}
		if !line.Level.Valid() {
			return nil, edge.Invalid("Invalid log level. Must be: info, warn, or error")
		}
		beat.Logs = []store.LogLine{line}
	default:
		return nil, edge.Invalid("Invalid body. Expected { level, message } or { logs: [...] }")
	}
	return reply, h.touch(ctx, beat)
}

// logBatch returns the entries that are log lines and skips the others.
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
		lines = append(lines, store.LogLine{Level: m.Level, Message: store.Text(*m.Message)})
	}
	return lines
}

func (h *holders) heartbeat(ctx context.Context, c echo.Context) (any, error) {
	beat := store.Beat{BuildID: c.Param("id"), WorkerID: c.QueryParam("worker_id")}
	if beat.WorkerID == "" {
		return nil, edge.Invalid("worker_id required")
	}
	var body api.Heartbeat
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	}
	if !store.ValidID(beat.BuildID) {
		return nil, buildNotFound()
	}
	if !store.ValidID(beat.WorkerID) {
		return nil, store.NewError(store.NotAssigned, "Build not assigned to this worker")
	}
	var err error
	if err = identify(&beat, c.Request().Header); err != nil {
		return nil, err
	}
	// A bad percentage is ignored because it is no reason to refuse a beat.
	if p := body.Progress; p != nil && *p >= 0 && *p <= 100 {
		beat.Logs = []store.LogLine{{
			Level: store.Info, Message: "Build progress: " + strconv.FormatFloat(*p, 'f', -1, 64) + "%",
		}}
		beat.Kind, beat.Facts = store.LineProgress, store.LineFacts{Percent: *p}
	}
	reply, err := h.store.Heartbeat(ctx, beat)
	return h.beatReply(c, reply), h.publishBeat(ctx, beat, reply, err)
}

// beatReply answers a heartbeat. It renews the worker's token, with the same counter, so
// that the token does not expire while a long build keeps the worker from polling.
func (h *holders) beatReply(c echo.Context, reply store.BeatReply) api.HeartbeatReply {
	r := api.NewHeartbeatReply(reply.Cancelled)
	if shown := edge.Header(c.Request().Header, edge.HeaderWorkerToken); shown != "" {
		if t, err := h.tokens.Check(shown); err == nil && t.Worker == reply.Used.Worker && t.Counter >= reply.Used.Counter {
			r.AccessToken = h.tokens.Issue(t)
		}
	}
	return r
}

// telemetry handles POST /api/builds/:id/telemetry. It counts as a beat even if its
// figures are bad.
func (h *holders) telemetry(ctx context.Context, c echo.Context) (any, error) {
	beat, err := holderOf(c)
	if err != nil {
		return nil, err
	}
	var body struct {
		Type      json.RawMessage `json:"type"`
		Timestamp json.RawMessage `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	}
	t, err := store.ParseTelemetry(body.Type, body.Timestamp, body.Data)
	if err != nil {
		return nil, err
	}
	beat.Logs, beat.Kind = []store.LogLine{{Level: store.Info, Message: t.Line()}}, store.LineTelemetry
	reply, err := h.store.Telemetry(ctx, beat, t)
	return api.Status{Status: "ok"}, h.publishBeat(ctx, beat, reply, err)
}

// named is a request that names a build, with its content.
type named struct {
	build   store.Build
	beat    store.Beat
	message string
}

// named reads such a request. If it names no worker, the worker is the one that holds the
// build or held it last.
func (h *holders) named(ctx context.Context, c echo.Context) (n named, err error) {
	var body struct {
		BuildID json.RawMessage `json:"build_id"`
		Error   json.RawMessage `json:"error"`
	}
	if _, err := edge.ReadJSON(c, &body); err != nil {
		return n, err
	}
	switch {
	case store.Absent(body.BuildID) || json.Unmarshal(body.BuildID, &n.beat.BuildID) != nil || n.beat.BuildID == "":
		return n, edge.Invalid("build_id required")
	case !store.Absent(body.Error) && json.Unmarshal(body.Error, &n.message) != nil:
		return n, edge.Invalid("error must be a text")
	case !store.ValidID(n.beat.BuildID):
		return n, buildNotFound()
	}
	if err = identify(&n.beat, c.Request().Header); err != nil {
		return n, err
	}
	if n.build, err = h.store.Find(ctx, n.beat.BuildID); err != nil {
		return n, err
	}
	n.message = store.Text(n.message)
	// A worker that names itself must be the one that holds the build.
	n.beat.WorkerID = cmp.Or(c.Request().Header.Get(api.HeaderWorkerID), n.build.WorkerID, n.build.LastWorkerID)
	switch {
	case n.beat.WorkerID == "" && !n.build.State.Final():
		return n, store.NewError(store.NotAssigned, "Build not assigned to a worker")
	case n.beat.WorkerID != "" && !store.ValidID(n.beat.WorkerID):
		return n, store.NewError(store.Forbidden, "Unknown worker")
	}
	return n, nil
}

func (h *holders) workerHeartbeat(ctx context.Context, c echo.Context) (any, error) {
	n, err := h.named(ctx, c)
	if err != nil {
		return nil, err
	}
	reply := store.BeatReply{Cancelled: n.build.State == store.Cancelled && n.build.WorkerID == ""} // cancelled before any worker had it
	if !reply.Cancelled {
		reply, err = h.store.Heartbeat(ctx, n.beat)
		if err := h.publishBeat(ctx, n.beat, reply, err); err != nil {
			return nil, err
		}
	}
	return api.BeatReply{Success: true, HeartbeatReply: h.beatReply(c, reply)}, nil
}
