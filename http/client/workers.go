package client

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

// Register registers a worker, or registers it again if r.ID is set. Safe to repeat
// with r.ID; without it each repeat may leave an extra worker behind.
func (c *Client) Register(ctx context.Context, r api.Register) (api.Registered, error) {
	return ask[api.Registered](ctx, c, call{method: http.MethodPost, path: "/api/workers/register", body: r})
}

// Poll is a request for work.
type Poll struct {
	// Token is the worker token of the last reply. If it is empty, WorkerID is used.
	Token    string
	WorkerID string
	// Instance is the id of the worker's process, as it registered; may be empty.
	Instance string
	// Wait is how long the controller may keep the call open until there is
	// work: 0 to 60 s, rounded down to a second.
	Wait time.Duration
	// Active lists the builds that the worker runs; nil says nothing. A build that it
	// holds but does not list is handed out again.
	Active []string
}

// Poll returns a job, or none, and the next token. A repeat after a lost reply sends
// the old token. The controller accepts it and returns the same job again.
func (c *Client) Poll(ctx context.Context, p Poll) (api.PollReply, error) {
	// It is a POST, because net/http repeats a GET by itself when a kept connection
	// breaks. Each poll rotates the token, so only the caller may decide to repeat
	// it.
	cl := call{
		method: http.MethodPost, path: "/api/workers/poll", header: http.Header{}, extra: p.Wait,
		query: query("wait", positive(int(p.Wait/time.Second))),
	}
	if p.Token != "" {
		cl.header.Set(api.HeaderWorkerToken, p.Token)
	} else {
		cl.query.Set("worker_id", p.WorkerID)
	}
	setIf(cl.header, api.HeaderInstance, p.Instance)
	if p.Active != nil {
		cl.query.Set("active", strings.Join(p.Active, ","))
	}
	return ask[api.PollReply](ctx, c, cl)
}

// Unregister removes the worker. Its builds are pending again at once.
func (c *Client) Unregister(ctx context.Context, token string) (api.Unregistered, error) {
	header := http.Header{}
	header.Set(api.HeaderWorkerToken, token)
	return ask[api.Unregistered](ctx, c, call{method: http.MethodPost, path: "/api/workers/unregister", header: header})
}

// Upload is a worker's report that a build has ended.
type Upload struct {
	Held
	// Success is sent with Result; a failure with ErrorMessage.
	Success      bool
	ErrorMessage string
	// Fault is what a failure ended by; "" counts as store.FaultBuild.
	Fault  store.Fault
	Result *Content
	// Progress may be nil.
	Progress Progress
}

// Upload reports that a build has ended. Safe to repeat, because the controller
// accepts an identical repeat of an accepted result.
func (c *Client) Upload(ctx context.Context, u Upload) (api.Uploaded, error) {
	// The fields come first, because the controller then knows which build the bytes
	// belong to while they arrive.
	parts := []part{
		field("build_id", u.BuildID),
		field("worker_id", u.WorkerID),
		field("success", strconv.FormatBool(u.Success)),
	}
	if !u.Success && u.ErrorMessage != "" {
		parts = append(parts, field("error_message", u.ErrorMessage))
	}
	if u.Fault != "" {
		parts = append(parts, field("fault", string(u.Fault)))
	}
	if u.Result != nil {
		parts = append(parts, file("result", "result", "application/octet-stream", *u.Result))
	}
	cl := call{method: http.MethodPost, path: "/api/workers/upload", header: u.header()}
	return upload[api.Uploaded](ctx, c, cl, parts, u.Progress)
}

// Heartbeat sends a beat of a build. progress is in percent; nil leaves it out. The reply
// has b's token with a new expiry, if that token is valid. Safe to repeat.
func (c *Client) Heartbeat(ctx context.Context, b Held, progress *float64) (api.HeartbeatReply, error) {
	cl := b.call(http.MethodPost, "/heartbeat", api.Heartbeat{Progress: progress})
	cl.query = query("worker_id", b.WorkerID)
	setIf(cl.header, api.HeaderWorkerToken, b.Token)
	return ask[api.HeartbeatReply](ctx, c, cl)
}

// Telemetry sends figures of the worker's machine, which are a beat of the build too. Safe
// to repeat; each writes a line to the build's log.
func (c *Client) Telemetry(ctx context.Context, b Held, t api.Telemetry) error {
	_, err := ask[api.Status](ctx, c, b.call(http.MethodPost, "/telemetry", t))
	return err
}

// PostLogs appends lines to a build's log. A repeat after a lost reply may write them
// twice.
func (c *Client) PostLogs(ctx context.Context, b Held, lines []api.LogMessage) (api.PostedLogs, error) {
	body := struct {
		Logs []api.LogMessage `json:"logs"`
	}{lines}
	return ask[api.PostedLogs](ctx, c, b.call(http.MethodPost, "/logs", body))
}

// Report sends a worker's diagnostic report.
func (c *Client) Report(ctx context.Context, r api.PostDiagnostic) (api.PostedDiagnostic, error) {
	return ask[api.PostedDiagnostic](ctx, c, call{method: http.MethodPost, path: "/api/diagnostics/report", body: r})
}

// FailBuild ends a build as failed, whoever holds it. Safe to repeat.
func (c *Client) FailBuild(ctx context.Context, buildID, reason string) (api.Uploaded, error) {
	return ask[api.Uploaded](ctx, c, call{method: http.MethodPost, path: "/api/workers/fail", body: api.FailBuild{BuildID: buildID, Error: reason}})
}

// WorkerFilter selects workers; empty members match all.
type WorkerFilter struct {
	Status string // idle, building or offline
	// Limit is the most to return; 0 means all.
	Limit int
}

// Workers lists the fleet, the oldest first. Safe to repeat.
func (c *Client) Workers(ctx context.Context, f WorkerFilter) (api.WorkerList, error) {
	return ask[api.WorkerList](ctx, c, call{
		method: http.MethodGet, path: "/api/workers", query: query("status", f.Status, "limit", positive(f.Limit)),
	})
}

// Worker returns one worker. Safe to repeat.
func (c *Client) Worker(ctx context.Context, id string) (api.Worker, error) {
	return ask[api.Worker](ctx, c, call{method: http.MethodGet, path: "/api/workers/{worker}", id: id})
}

// Drain stops new builds for a worker. The worker finishes the builds that it holds.
// Safe to repeat.
func (c *Client) Drain(ctx context.Context, id string) (api.Worker, error) {
	return c.SetDraining(ctx, id, true, "")
}

// Resume ends Drain. Safe to repeat.
func (c *Client) Resume(ctx context.Context, id string) (api.Worker, error) {
	return c.SetDraining(ctx, id, false, "")
}

// SetDraining is Drain or Resume with a reason for the audit, which may be "". Safe to
// repeat.
func (c *Client) SetDraining(ctx context.Context, id string, draining bool, reason string) (api.Worker, error) {
	cl := call{method: http.MethodPost, path: "/api/workers/{worker}/resume", id: id}
	if draining {
		cl.path = "/api/workers/{worker}/drain"
	}
	if reason != "" {
		cl.body = api.Order{Reason: reason}
	}
	return ask[api.Worker](ctx, c, cl)
}

// DeleteWorker removes a worker. Its builds are pending again at once. A repeat
// fails, because the worker is then unknown.
func (c *Client) DeleteWorker(ctx context.Context, id string) (api.Unregistered, error) {
	return ask[api.Unregistered](ctx, c, call{method: http.MethodDelete, path: "/api/workers/{worker}", id: id})
}
