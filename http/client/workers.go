package client

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

// Register registers a worker, or registers it again if r.ID is set. Safe to repeat
// with r.ID; without it each repeat may leave an extra worker behind.
func (c *Client) Register(ctx context.Context, r api.Register) (api.Registered, error) {
	return Call(ctx, c, api.RegisterWorker, r)
}

// Poll is a request for work: a call of its own, or a part of [Upload].
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
	// Max is how many builds the worker can begin now; less than 2 asks for one. The end of a
	// build brings one, whatever Max is.
	Max int
}

// Poll returns a job, or none, and the next token. A repeat after a lost reply sends
// the old token. The controller accepts it and returns the same job again.
func (c *Client) Poll(ctx context.Context, p Poll) (api.PollReply, error) {
	// It is a POST, because net/http repeats a GET by itself when a kept connection
	// breaks. Each poll rotates the token, so only the caller may decide to repeat
	// it.
	in := api.PollIn{Token: p.Token, Instance: p.Instance, Active: p.active()}
	if p.Token == "" {
		in.WorkerID = p.WorkerID
	}
	if p.Max > 1 {
		in.Max = p.Max
	}
	if wait := int(p.Wait / time.Second); wait > 0 {
		in.Wait = strconv.Itoa(wait)
	}
	cl := of(api.PollByPost, in)
	cl.extra = p.Wait
	return ask[api.PollReply](ctx, c, cl)
}

func (p Poll) active() *string {
	if p.Active == nil {
		return nil
	}
	active := strings.Join(p.Active, ",")
	return &active
}

// Leaving says that the worker takes no more builds. Safe to repeat.
func (c *Client) Leaving(ctx context.Context, token string) (api.Status, error) {
	return Call(ctx, c, api.WorkerLeaves, api.UnregisterIn{Token: token})
}

// Unregister removes the worker. Its builds are pending again at once.
func (c *Client) Unregister(ctx context.Context, token string) (api.Unregistered, error) {
	return Call(ctx, c, api.UnregisterWorker, api.UnregisterIn{Token: token})
}

// Upload is a worker's report that a build has ended.
type Upload struct {
	Held
	// Success is sent with Result; a failure with ErrorMessage.
	Success      bool
	ErrorMessage string
	// Fault is what a failure ended by; "" counts as store.FaultBuild.
	Fault store.Fault
	// Ended is how the command of a build that failed ended.
	Ended  Ended
	Result *Content
	// ResultName is the file name of Result, whose extension counts for platforms other than
	// ios and android; may be empty.
	ResultName string
	// Next, if it has a token, asks for the worker's next build in the same reply, without a
	// wait. An earlier controller ignores it: the reply has no token then.
	Next Poll
	// Progress may be nil.
	Progress Progress
}

// Ended is how a command ended, if that is known: with an exit code other than 0, by a signal, or
// at its time limit. An earlier controller ignores it.
type Ended struct {
	ExitCode, Signal int
	TimedOut         bool
}

func (e Ended) parts() (parts []part) {
	if e.ExitCode != 0 {
		parts = append(parts, field("exit_code", strconv.Itoa(e.ExitCode)))
	}
	if e.Signal != 0 {
		parts = append(parts, field("signal", strconv.Itoa(e.Signal)))
	}
	if e.TimedOut {
		parts = append(parts, field("timed_out", "true"))
	}
	return parts
}

// Upload reports that a build has ended. Safe to repeat, because the controller
// accepts an identical repeat of an accepted result, and gives the same next build to the
// same token.
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
	parts = append(parts, u.Ended.parts()...)
	if u.Result != nil {
		parts = append(parts, file("result", cmp.Or(u.ResultName, "result"), "application/octet-stream", *u.Result))
	}
	in := api.UploadResultIn{Process: u.process(), BuildID: u.BuildID, WorkerID: u.WorkerID}
	if u.Next.Token != "" {
		in.NextIn = api.NextIn{Next: "1", Active: u.Next.active(), Token: u.Next.Token}
	}
	cl := of(api.UploadResult, in)
	return upload[api.Uploaded](ctx, c, cl, parts, u.Progress)
}

// Heartbeat sends a heartbeat of a build. progress is in percent; nil leaves it out. The reply
// has b's token with a new expiry, if that token is valid. Safe to repeat.
func (c *Client) Heartbeat(ctx context.Context, b Held, progress *float64) (api.HeartbeatReply, error) {
	return Call(ctx, c, api.SendHeartbeat, api.HeartbeatIn{
		ID: api.BuildID(b.BuildID), WorkerID: b.WorkerID, Process: b.process(), Token: b.Token, Body: api.Heartbeat{Progress: progress},
	})
}

// Telemetry sends figures of the worker's machine, which are a heartbeat of the build too. Safe
// to repeat; each writes a line to the build's log.
func (c *Client) Telemetry(ctx context.Context, b Held, t api.Telemetry) error {
	_, err := Call(ctx, c, api.PostTelemetry, api.PostTelemetryIn{HoldingWithBuild: b.holding(), Body: t})
	return err
}

// PostLogs appends lines to a build's log. A repeat after a lost reply may write them
// twice.
func (c *Client) PostLogs(ctx context.Context, b Held, lines []api.LogMessage) (api.PostedLogs, error) {
	return Call(ctx, c, api.WriteLogs, api.WriteLogsIn{Holding: b.holding().Holding, Body: api.PostLogs{Logs: lines}})
}

// Report sends a worker's diagnostic report.
func (c *Client) Report(ctx context.Context, r api.PostDiagnostic) (api.PostedDiagnostic, error) {
	return Call(ctx, c, api.ReportDiagnostics, r)
}

// WorkerFilter selects workers; empty members match all.
type WorkerFilter = api.WorkerFilter

// Workers lists the fleet, the oldest first; limit 0 means all. Safe to repeat.
func (c *Client) Workers(ctx context.Context, f WorkerFilter) (api.WorkerList, error) {
	list, err := pages(ctx, c, api.ListWorkers, f.Limit, 0, func(limit int, from api.Continue) WorkerFilter {
		f.Limit, f.Continue = limit, from
		return f
	}, func(out api.WorkerList) []api.Worker { return out.Workers })
	return api.WorkerList{Workers: list, Total: len(list)}, err
}
