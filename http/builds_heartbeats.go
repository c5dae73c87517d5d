package http

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// logsIn is an [api.WriteLogsIn] of which single entries may be anything.
type logsIn struct {
	api.Holding
	Body struct {
		Logs    *[]json.RawMessage `json:"logs"`
		Level   *string            `json:"level"`
		Message *string            `json:"message"`
	} `body:"json"`
}

func (h *holders) logs(ctx context.Context, in logsIn) (api.PostedLogs, error) {
	heartbeat, body, reply := heartbeatOf(in.Holding), &in.Body, api.PostedLogs{Success: true}
	switch {
	case body.Logs != nil:
		heartbeat.Logs = logBatch(*body.Logs)
		n := len(heartbeat.Logs)
		reply.Count = &n
	case body.Level != nil && body.Message != nil:
		line := store.LogLine{Level: store.Level(*body.Level), Message: store.Text(*body.Message)}
		if !line.Level.Valid() {
			return reply, edge.Invalid("Invalid log level. Must be: info, warn, or error")
		}
		heartbeat.Logs = []store.LogLine{line}
	default:
		return reply, edge.Invalid("Invalid body. Expected { level, message } or { logs: [...] }")
	}
	return reply, h.touch(ctx, heartbeat)
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

// heartbeatIn is an [api.HeartbeatIn] in the order in which old clients expect the errors.
type heartbeatIn struct {
	WorkerID string        `query:"worker_id"`
	Body     api.Heartbeat `body:"json"`
	ID       api.BuildID   `path:"id"`
	Holder   assignee      `query:"worker_id"`
	api.Process
	Token string `header:"X-Worker-Token"`
}

// Check implements [api.Checker].
func (in *heartbeatIn) Check() error {
	if in.WorkerID == "" {
		return edge.Invalid("worker_id required")
	}
	return nil
}

// assignee is the id of a worker that has a build. An impossible one has none.
type assignee string

// ReadParam implements [api.Param].
func (id *assignee) ReadParam(_, sent string) error {
	*id = assignee(sent)
	if !store.ValidID(sent) {
		return store.NewError(store.NotAssigned, "Build not assigned to this worker")
	}
	return nil
}

func (h *holders) heartbeat(ctx context.Context, in heartbeatIn) (api.HeartbeatReply, error) {
	heartbeat := store.Heartbeat{BuildID: string(in.ID), WorkerID: string(in.Holder), Attempt: in.Attempt, Instance: in.Instance}
	// A bad percentage is ignored because it is no reason to refuse a heartbeat.
	if p := in.Body.Progress; p != nil && *p >= 0 && *p <= 100 {
		heartbeat.Logs = []store.LogLine{{
			Level: store.Info, Message: "Build progress: " + strconv.FormatFloat(*p, 'f', -1, 64) + "%",
		}}
		heartbeat.Kind, heartbeat.Facts = store.LineProgress, store.LineFacts{Percent: *p}
	}
	reply, err := h.store.Heartbeat(ctx, heartbeat)
	return h.heartbeatReply(in.Token, reply), h.publishHeartbeat(ctx, heartbeat, reply, err)
}

// heartbeatReply answers a heartbeat. It renews the token that it showed, with the same counter, so
// that the token does not expire while a long build keeps the worker from polling.
func (h *holders) heartbeatReply(shown string, reply store.HeartbeatReply) api.HeartbeatReply {
	r := api.NewHeartbeatReply(reply.Cancelled)
	if shown != "" {
		if t, err := h.tokens.Check(shown); err == nil && t.Worker == reply.Used.Worker && t.Counter >= reply.Used.Counter {
			r.AccessToken = h.tokens.Issue(t)
		}
	}
	return r
}

// telemetryIn is an [api.PostTelemetryIn] whose members may have any type.
type telemetryIn struct {
	api.HoldingWithBuild
	Body struct {
		Type      json.RawMessage `json:"type"`
		Timestamp json.RawMessage `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	} `body:"json"`
}

// telemetry counts as a heartbeat even if its figures are bad.
func (h *holders) telemetry(ctx context.Context, in telemetryIn) (reply api.Status, err error) {
	t, err := store.ParseTelemetry(in.Body.Type, in.Body.Timestamp, in.Body.Data)
	if err != nil {
		return reply, err
	}
	heartbeat := heartbeatOf(in.Holding)
	heartbeat.Logs, heartbeat.Kind = []store.LogLine{{Level: store.Info, Message: t.Line()}}, store.LineTelemetry
	told, err := h.store.Telemetry(ctx, heartbeat, t)
	return api.Status{Status: "ok"}, h.publishHeartbeat(ctx, heartbeat, told, err)
}

// namedIn is an [api.FailBuildIn] or an [api.BeatBuildIn]: its body names the build.
type namedIn struct {
	Body buildNamed `body:"json"`
	api.Process
	WorkerID string `header:"X-Worker-Id"`
	Token    string `header:"X-Worker-Token"`
}

// buildNamed is a body whose members may have any type, because the errors name them.
type buildNamed struct {
	BuildID json.RawMessage `json:"build_id"`
	Error   json.RawMessage `json:"error"`

	id, message string
}

// Check implements [api.Checker]: it reads the members.
func (b *buildNamed) Check() error {
	switch {
	case store.Absent(b.BuildID) || json.Unmarshal(b.BuildID, &b.id) != nil || b.id == "":
		return edge.Invalid("build_id required")
	case !store.Absent(b.Error) && json.Unmarshal(b.Error, &b.message) != nil:
		return edge.Invalid("error must be a text")
	case !store.ValidID(b.id):
		return buildNotFound()
	}
	b.message = store.Text(b.message)
	return nil
}

// named finds the build. A worker that names itself, or whose key is for it alone, must be the one
// that holds it; else it is the one that holds the build or held it last.
func (h *holders) named(ctx context.Context, in namedIn) (b store.Build, heartbeat store.Heartbeat, err error) {
	if b, err = h.store.Find(ctx, in.Body.id); err != nil {
		return b, heartbeat, err
	}
	heartbeat = store.Heartbeat{BuildID: in.Body.id, Attempt: in.Attempt, Instance: in.Instance}
	if k := edge.CallerOf(ctx).Key; k != nil {
		in.WorkerID = cmp.Or(in.WorkerID, k.Worker)
	}
	heartbeat.WorkerID = cmp.Or(in.WorkerID, b.WorkerID, b.LastWorkerID)
	switch {
	case heartbeat.WorkerID == "" && !b.State.Final():
		err = store.NewError(store.NotAssigned, "Build not assigned to a worker")
	case heartbeat.WorkerID != "" && !store.ValidID(heartbeat.WorkerID):
		err = store.NewError(store.Forbidden, "Unknown worker")
	}
	return b, heartbeat, err
}

func (h *holders) heartbeatByBody(ctx context.Context, in namedIn) (reply api.BeatReply, err error) {
	b, heartbeat, err := h.named(ctx, in)
	if err != nil {
		return reply, err
	}
	told := store.HeartbeatReply{Cancelled: b.State == store.Cancelled && b.WorkerID == ""} // cancelled before any worker had it
	if !told.Cancelled {
		told, err = h.store.Heartbeat(ctx, heartbeat)
		if err := h.publishHeartbeat(ctx, heartbeat, told, err); err != nil {
			return reply, err
		}
	}
	return api.BeatReply{Success: true, HeartbeatReply: h.heartbeatReply(in.Token, told)}, nil
}
