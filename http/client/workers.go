package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
)

// Register makes a worker known, or known again when r.ID is. Safe to repeat
// when r.ID is set; without it each repeat may leave a worker behind.
func (c *Client) Register(ctx context.Context, r api.Register) (api.Registered, error) {
	var out api.Registered
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/workers/register"}, r, &out)
	return out, err
}

// Poll asks for work.
type Poll struct {
	// Token is the worker token of the last reply. WorkerID is used if empty.
	Token    string
	WorkerID string
	// Wait is how long the controller may keep the call open until there is
	// work: 0 to 60 s, rounded down to a second.
	Wait time.Duration
	// Active lists the builds that the worker has; nil says nothing. A build
	// that it holds and does not list is handed out again.
	Active []string
}

// Poll returns a job, or none, and the next token. A repeat after a lost reply
// presents the old token, which the controller understands: it gives the same
// job again.
func (c *Client) Poll(ctx context.Context, p Poll) (api.PollReply, error) {
	query, header := url.Values{}, http.Header{}
	if p.Token != "" {
		header.Set(api.HeaderWorkerToken, p.Token)
	} else {
		query.Set("worker_id", p.WorkerID)
	}
	if seconds := int(p.Wait / time.Second); seconds > 0 {
		query.Set("wait", strconv.Itoa(seconds))
	}
	if p.Active != nil {
		query.Set("active", strings.Join(p.Active, ","))
	}
	var out api.PollReply
	// POST, because net/http repeats a GET by itself when a kept connection
	// breaks; each poll rotates the token, so that has to be our decision.
	err := c.json(ctx, call{
		method: http.MethodPost, path: "/api/workers/poll",
		query: query, header: header, extra: p.Wait,
	}, nil, &out)
	return out, err
}

// Unregister takes the worker off; its builds are pending again at once.
func (c *Client) Unregister(ctx context.Context, token string) (api.Unregistered, error) {
	header := http.Header{}
	header.Set(api.HeaderWorkerToken, token)
	var out api.Unregistered
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/workers/unregister", header: header}, nil, &out)
	return out, err
}

// Upload is a build's end as its worker reports it.
type Upload struct {
	Held
	// Success is sent with Result; a failure with ErrorMessage.
	Success      bool
	ErrorMessage string
	Result       *Content
	// Progress may be nil.
	Progress Progress
}

// Upload reports a build's end. Safe to repeat: the identical repeat of an
// accepted result is accepted.
func (c *Client) Upload(ctx context.Context, u Upload) (api.Uploaded, error) {
	header := http.Header{}
	u.set(header)
	// The fields come first, so that the controller knows whose bytes these are
	// while they move.
	parts := []part{
		field("build_id", u.BuildID),
		field("worker_id", u.WorkerID),
		field("success", strconv.FormatBool(u.Success)),
	}
	if !u.Success && u.ErrorMessage != "" {
		parts = append(parts, field("error_message", u.ErrorMessage))
	}
	if u.Result != nil {
		parts = append(parts, file("result", "result", "application/octet-stream", *u.Result))
	}
	var out api.Uploaded
	cl := call{method: http.MethodPost, path: "/api/workers/upload", header: header}
	err := c.upload(ctx, cl, parts, u.Progress, &out)
	return out, err
}

// Heartbeat is a sign of life for a build. progress is in percent; nil says
// nothing. Safe to repeat.
func (c *Client) Heartbeat(ctx context.Context, b Held, progress *float64) (api.HeartbeatReply, error) {
	var out api.HeartbeatReply
	if err := validBuild(b.BuildID); err != nil {
		return out, err
	}
	header := http.Header{}
	b.set(header)
	err := c.json(ctx, call{
		method: http.MethodPost, path: "/api/builds/" + b.BuildID + "/heartbeat",
		query: url.Values{"worker_id": {b.WorkerID}}, header: header,
	}, api.Heartbeat{Progress: progress}, &out)
	return out, err
}

// PostLogs appends lines to a build's log. A repeat after a lost reply may
// write them twice.
func (c *Client) PostLogs(ctx context.Context, b Held, lines []api.LogMessage) (api.PostedLogs, error) {
	var out api.PostedLogs
	if err := validBuild(b.BuildID); err != nil {
		return out, err
	}
	header := http.Header{}
	b.set(header)
	body := struct {
		Logs []api.LogMessage `json:"logs"`
	}{lines}
	cl := call{method: http.MethodPost, path: "/api/builds/" + b.BuildID + "/logs", header: header}
	err := c.json(ctx, cl, body, &out)
	return out, err
}

// Telemetry tells how the machine of a build's worker does. It counts as a sign
// of life. A repeat after a lost reply may write its log line twice.
func (c *Client) Telemetry(ctx context.Context, b Held, t api.Telemetry) error {
	if err := validBuild(b.BuildID); err != nil {
		return err
	}
	header := http.Header{}
	b.set(header)
	return c.json(ctx, call{method: http.MethodPost, path: "/api/builds/" + b.BuildID + "/telemetry", header: header}, t, nil)
}

// SecureCerts returns a build's unpacked certificates. Safe to repeat.
func (c *Client) SecureCerts(ctx context.Context, b Held) (api.SecureCerts, error) {
	var out api.SecureCerts
	if err := validBuild(b.BuildID); err != nil {
		return out, err
	}
	header := http.Header{}
	b.set(header)
	cl := call{method: http.MethodGet, path: "/api/builds/" + b.BuildID + "/certs-secure", header: header}
	err := c.json(ctx, cl, nil, &out)
	return out, err
}

// FailBuild ends a build as failed, whoever holds it. Safe to repeat.
func (c *Client) FailBuild(ctx context.Context, buildID, reason string) (api.Uploaded, error) {
	var out api.Uploaded
	body := api.FailBuild{BuildID: buildID, Error: reason}
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/workers/fail"}, body, &out)
	return out, err
}

// BeatBuild is a sign of life for a build, whoever holds it. Safe to repeat.
func (c *Client) BeatBuild(ctx context.Context, buildID string) (api.BeatReply, error) {
	var out api.BeatReply
	body := api.BeatBuild{BuildID: buildID}
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/workers/heartbeat"}, body, &out)
	return out, err
}
