package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/certs"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/metrics"
)

// holders serves workers that hold a build: they fetch its files, send heartbeats and logs,
// and finish it.
type holders struct {
	edge     *edge.Server
	cfg      Config
	store    Builds
	followed *followers
	queue    Queue
	tokens   *store.WorkerTokens
	publish  Publish
	forms    *uploads
	polls    *polls
	secrets  Secrets
}

func (h *holders) routes() []edge.Route {
	return []edge.Route{
		edge.OnRequest(h.edge, api.FetchSource, h.source),
		edge.OnRequest(h.edge, api.FetchCerts, h.certs),
		edge.OnRequest(h.edge, api.FetchCertsSecure, h.certsSecure),
		edge.OnRequest(h.edge, api.FetchInputs, h.inputs),
		edge.OnAs(h.edge, api.PostTelemetry, h.telemetry),
		edge.OnAs(h.edge, api.WriteLogs, h.logs),
		edge.OnAs(h.edge, api.SendHeartbeat, h.heartbeat),
		edge.OnAs(h.edge, api.SendHeartbeatByBody, h.heartbeatByBody),
		h.polls.ends(edge.OnRequest(h.edge, api.FailHeldBuild, h.fail)),
		h.polls.ends(edge.OnRequest(h.edge, api.UploadResult, h.upload)),
		h.polls.ends(edge.OnRequest(h.edge, api.UploadResultAlias, h.upload)),
	}
}

// heartbeatOf returns the heartbeat of a request. The store checks that the worker holds the build.
func heartbeatOf(in api.Holding) store.Heartbeat {
	return store.Heartbeat{BuildID: string(in.ID), WorkerID: string(in.WorkerID), Attempt: in.Attempt, Instance: in.Instance}
}

// touch records a heartbeat.
func (h *holders) touch(ctx context.Context, heartbeat store.Heartbeat) error {
	reply, err := h.store.RecordHeartbeat(ctx, heartbeat)
	return h.publishHeartbeat(ctx, heartbeat, reply, err)
}

// publishHeartbeat publishes the changes that a heartbeat made, unless err is set.
func (h *holders) publishHeartbeat(ctx context.Context, heartbeat store.Heartbeat, reply store.HeartbeatReply, err error) error {
	if err != nil {
		return err
	}
	if len(heartbeat.Logs) > 0 {
		h.followed.wake(heartbeat.BuildID)
	}
	if reply.Began {
		h.publish(store.TopicBuildUpdated, store.BuildUpdate{
			BuildID: heartbeat.BuildID, State: store.Building, WorkerID: heartbeat.WorkerID,
			Step: store.Step{What: store.StepBegan, Attempt: reply.Attempt},
		})
	}
	if reply.Cancelled {
		if b, err := h.store.Find(ctx, heartbeat.BuildID); err == nil && b.State == store.Cancelled {
			metrics.Observe(ctx, h.edge.Observed.CancelTold.WithLabelValues(), time.Since(b.CompletedAt))
		}
	}
	return nil
}

// presence returns a function that records a heartbeat at next and then once PresenceInterval
// has passed since the last one. It is called for as long as bytes move.
func (h *holders) presence(ctx context.Context, heartbeat store.Heartbeat, next time.Time) func(now time.Time) {
	return func(now time.Time) {
		if now.Before(next) {
			return
		}
		next = now.Add(h.cfg.PresenceInterval)
		if err := h.touch(ctx, heartbeat); err != nil {
			// The error is only logged because the end of the transfer decides who holds
			// the build.
			h.edge.Log.Debug().Err(err).Str("build", heartbeat.BuildID).Msg("heartbeat of a transfer not recorded")
		}
	}
}

// sendTo sends a file to the worker that holds its build. The transfer counts as a heartbeat;
// the first heartbeat turns an assigned build into a building one.
func (h *holders) sendTo(ctx context.Context, c echo.Context, heartbeat store.Heartbeat, d edge.Download) (any, error) {
	if c.Request().Method != http.MethodHead {
		if err := h.touch(ctx, heartbeat); err != nil {
			return nil, err
		}
		h.edge.Belongs(edge.CallerOf(ctx), heartbeat.WorkerID)
	}
	d.ContentType, d.Moved = "application/zip", h.presence(ctx, heartbeat, time.Now().Add(h.cfg.PresenceInterval))
	return nil, h.edge.SendDownload(c, d)
}

func (h *holders) source(ctx context.Context, c echo.Context, in api.Holding) (any, error) {
	heartbeat := heartbeatOf(in)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	file, err := open(ctx, b.Source, h.forms.files.Open, "Source not found")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return h.sendTo(ctx, c, heartbeat, edge.Download{Name: b.ID + ".zip", Content: file.Content, Digest: b.Source.SHA256})
}

func (h *holders) openCerts(ctx context.Context, b store.Build) (*storage.SealedFile, error) {
	return open(ctx, b.Certs, h.forms.files.OpenSealed, "Certs not found")
}

func (h *holders) certs(ctx context.Context, c echo.Context, in api.Holding) (any, error) {
	heartbeat := heartbeatOf(in)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	file, err := h.openCerts(ctx, b)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read from
	return h.sendTo(ctx, c, heartbeat, edge.Download{Name: b.ID + "-certs.zip", Cache: "no-store", Content: file, Digest: b.Certs.SHA256})
}

// keychainBytes is how many random bytes a keychain's password has.
const keychainBytes = 24

// certsSecure sends the unpacked certificates, for a virtual machine that can't unpack them
// itself.
func (h *holders) certsSecure(ctx context.Context, c echo.Context, in api.HoldingWithBuild) (any, error) {
	heartbeat := heartbeatOf(in.Holding)
	b, err := h.store.Held(ctx, heartbeat)
	if err != nil {
		return nil, err
	}
	unit, err := h.edge.Limit(edge.RuleCertificates).Take(ctx, h.edge.ShareOf(c), nil)
	if err != nil {
		return nil, err
	}
	defer unit.Release()
	bundle, err := h.unpackCerts(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := h.touch(ctx, heartbeat); err != nil {
		return nil, err
	}
	password := make([]byte, keychainBytes)
	_, _ = rand.Read(password) // never fails
	_ = http.NewResponseController(c.Response().Writer).SetWriteDeadline(time.Now().Add(edge.UnpackPatience))
	return nil, h.edge.Reply(c, api.SecureCerts{
		P12: bundle.P12, P12Password: bundle.Password, ProvisioningProfiles: bundle.Profiles,
		KeychainPassword: base64.StdEncoding.EncodeToString(password),
	})
}

// unpackCerts reads the certificates of b.
func (h *holders) unpackCerts(ctx context.Context, b store.Build) (certs.Bundle, error) {
	file, err := h.openCerts(ctx, b)
	if err != nil {
		return certs.Bundle{}, err
	}
	defer file.Close() // only read from
	archive, err := io.ReadAll(file)
	if err != nil {
		return certs.Bundle{}, err
	}
	bundle, err := certs.Unpack(bytes.NewReader(archive), int64(len(archive)), certs.MaxBytes)
	if err != nil {
		return bundle, store.Wrap(store.CertsUnusable, "Failed to process certs file", err)
	}
	return bundle, nil
}

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
	told, err := h.store.RecordHeartbeat(ctx, heartbeat)
	reply.Cancelled = told.Over
	return reply, h.publishHeartbeat(ctx, heartbeat, told, err)
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
	BuildID  json.RawMessage `json:"build_id"`
	Error    json.RawMessage `json:"error"`
	ExitCode json.RawMessage `json:"exit_code"`
	Signal   json.RawMessage `json:"signal"`
	TimedOut json.RawMessage `json:"timed_out"`

	id, message string
}

// ended returns how the command ended.
func (b *buildNamed) ended() store.Ended {
	return endedOf(string(b.ExitCode), string(b.Signal), string(b.TimedOut))
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

// heartbeat names the build and, unless the request doesn't, the worker.
func (in *namedIn) heartbeat(ctx context.Context) store.Heartbeat {
	if k := edge.CallerOf(ctx).Key; k != nil {
		in.WorkerID = cmp.Or(in.WorkerID, k.Worker)
	}
	return store.Heartbeat{BuildID: in.Body.id, WorkerID: in.WorkerID, Attempt: in.Attempt, Instance: in.Instance}
}

// named finds the build. A worker that names itself, or whose key is for it alone, must be the one
// that holds it; else it is the one that holds the build or held it last.
func (h *holders) named(ctx context.Context, heartbeat store.Heartbeat) (store.Build, store.Heartbeat, error) {
	b, err := h.store.Find(ctx, heartbeat.BuildID)
	if err != nil {
		return b, heartbeat, err
	}
	heartbeat.WorkerID = cmp.Or(heartbeat.WorkerID, b.WorkerID, b.LastWorkerID)
	switch {
	case heartbeat.WorkerID == "" && !b.State.Final():
		err = store.NewError(store.NotAssigned, "Build not assigned to a worker")
	case heartbeat.WorkerID != "" && !store.ValidID(heartbeat.WorkerID):
		err = store.NewError(store.Forbidden, "Unknown worker")
	}
	return b, heartbeat, err
}

func (h *holders) heartbeatByBody(ctx context.Context, in namedIn) (reply api.BeatReply, err error) {
	b, heartbeat, err := h.named(ctx, in.heartbeat(ctx))
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
