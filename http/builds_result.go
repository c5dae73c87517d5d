package http

import (
	"context"
	"errors"
	"fmt"
	"mime/multipart"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/tracing"
)

// recordTimeout is how long recording a result may take once its file is complete. It
// does not depend on the client, because finished work must not be lost.
const recordTimeout = 15 * time.Second

// outcome is the part of a POST /api/workers/upload form that has arrived.
type outcome struct {
	heartbeat    store.Heartbeat // which worker and build, as far as known
	success      string
	errorMessage string
	fault        store.Fault
	exit         string // the fields exit_code, signal and timed_out
	signal       string
	timedOut     string
	file         *storage.Upload // nil for none
	fileName     string          // as it was uploaded
	body         *edge.Body
	begun        time.Time
	build        store.Build // as it was at found
	found        time.Time   // zero: not found yet
}

func (h *holders) upload(ctx context.Context, c echo.Context, sent api.UploadResultIn) (any, error) {
	in := &outcome{body: edge.Watched(c.Request()), begun: time.Now()}
	in.heartbeat = store.Heartbeat{BuildID: sent.BuildID, WorkerID: sent.WorkerID, Attempt: sent.Attempt, Instance: sent.Instance}
	defer func() { in.file.Discard() }()
	if err := h.admitUpload(ctx, in); err != nil {
		return nil, err
	}
	err := h.forms.Read(c, func(f *edge.Form, p *multipart.Part) error { return h.takeUpload(ctx, f, p, in) })
	if err != nil {
		return nil, err
	}
	success, err := in.check()
	if err != nil {
		return nil, err
	}
	ctx, done := in.body.Keep(ctx)
	defer done()
	reply, err := h.recordResult(ctx, in, success)
	return ended{reply, in.heartbeat.WorkerID}, err
}

func uploaded(success bool) api.Uploaded {
	if success {
		return api.Uploaded{Success: true, Status: "success", Message: "Result uploaded successfully"}
	}
	return api.Uploaded{Success: true, Status: "failed", Message: "Build marked as failed"}
}

// pendingAgain is the reply to a result after which the build is pending again.
func pendingAgain() api.Uploaded {
	return api.Uploaded{Success: true, Status: "pending", Message: "Build is pending again"}
}

var errRecordTimeout = errors.New("recording the result took too long")

// admitUpload refuses at once what would be refused after the body, as far as the header says
// who uploads what.
func (h *holders) admitUpload(ctx context.Context, in *outcome) error {
	if in.heartbeat.BuildID == "" || in.heartbeat.WorkerID == "" {
		return nil
	}
	if err := in.checkIDs(); err != nil {
		return err
	}
	b, err := h.find(ctx, in)
	if err != nil {
		return err
	}
	stale := in.heartbeat.Attempt > 0 && in.heartbeat.Attempt < b.Attempt
	if stale || b.State.Held() && b.WorkerID != in.heartbeat.WorkerID {
		_, err = h.store.Held(ctx, in.heartbeat)
		if store.CodeOf(err) == store.Forbidden {
			err = workerNotFound() // the same error as after the body
		}
		return err
	}
	h.attribute(ctx, in)
	return nil
}

// find finds the build of an upload, unless it was found a moment ago.
func (h *holders) find(ctx context.Context, in *outcome) (store.Build, error) {
	if time.Since(in.found) > briefly {
		b, err := h.store.Find(ctx, in.heartbeat.BuildID)
		if err != nil {
			return b, err
		}
		in.build, in.found = b, time.Now()
	}
	return in.build, nil
}

// briefly is how long an upload lasts that does not count as a heartbeat, and for which the
// build is read once.
const briefly = time.Second

// attribute makes the transfer count as heartbeats from now on: at once if the last heartbeat
// of the build was long ago, else when it has lasted a moment.
func (h *holders) attribute(ctx context.Context, in *outcome) {
	if in.body == nil || in.body.Moved != nil || in.checkIDs() != nil {
		return
	}
	now := time.Now()
	first := now
	b, _ := h.find(ctx, in) // if it can't be found, recordResult says so
	if last := later(b.StartedAt, b.LastSeenAt); now.Sub(last) < h.cfg.PresenceInterval {
		first = now.Add(briefly)
	}
	in.body.Moved = h.presence(ctx, in.heartbeat, first)
	in.body.Moved(now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// takeUpload reads a part. The file comes first, last or not at all.
func (h *holders) takeUpload(ctx context.Context, f *edge.Form, p *multipart.Part, in *outcome) (err error) {
	switch p.FormName() {
	case "build_id":
		err = sameField(f, p, &in.heartbeat.BuildID, "build_id differs from X-Build-Id")
	case "worker_id":
		if err = sameField(f, p, &in.heartbeat.WorkerID, "worker_id differs from X-Worker-Id"); err == nil {
			err = edge.CallerOf(ctx).Key.Of(in.heartbeat.WorkerID)
		}
	case "success":
		in.success, err = f.Field(p)
	case "error_message":
		in.errorMessage, _, err = f.Text(p) // a truncated message is better than none
	case "fault":
		var fault string
		fault, err = f.Field(p)
		in.fault = store.Fault(fault)
	case "exit_code":
		in.exit, err = f.Field(p)
	case "signal":
		in.signal, err = f.Field(p)
	case "timed_out":
		in.timedOut, err = f.Field(p)
	case "result":
		if in.file != nil {
			return edge.Invalid("More than one result file")
		}
		h.attribute(ctx, in)
		in.fileName = p.FileName()
		in.file, err = h.forms.file(ctx, f, p, "Result file", h.cfg.MaxResult, "", false)
	}
	return err
}

// endedOf returns how a command ended. It ignores what is no number, because a result must not be
// refused for it.
func endedOf(exit, signal, timedOut string) store.Ended {
	number := func(text string) *int {
		n, err := strconv.Atoi(text)
		if err != nil {
			return nil
		}
		return &n
	}
	return store.NewEnded(number(exit), number(signal), timedOut == "true")
}

// sameField reads a field that must equal the known value.
func sameField(f *edge.Form, p *multipart.Part, known *string, contradiction string) error {
	v, err := f.Field(p)
	if err != nil {
		return err
	}
	if *known != "" && *known != v {
		return edge.Invalid(contradiction)
	}
	*known = v
	return nil
}

func (in *outcome) checkIDs() error {
	switch {
	case in.heartbeat.BuildID == "" || in.heartbeat.WorkerID == "":
		return edge.Invalid("build_id and worker_id required")
	case !store.ValidID(in.heartbeat.BuildID):
		return buildNotFound()
	case !store.ValidID(in.heartbeat.WorkerID):
		return workerNotFound()
	}
	return nil
}

func (in *outcome) check() (success bool, err error) {
	if err := in.checkIDs(); err != nil {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(in.success)) {
	case "true":
		success = true
	case "false":
	default:
		return false, edge.Invalid(`success must be "true" or "false"`)
	}
	if success && in.file == nil {
		return false, edge.Invalid("Missing result file")
	}
	return success, nil
}

// recordResult finishes the build. A file that has its name but no row stays, because a
// newer result may have the same name by now; the sweeper removes it.
func (h *holders) recordResult(ctx context.Context, in *outcome, success bool) (reply api.Uploaded, err error) {
	b, err := h.find(ctx, in)
	if err != nil {
		return reply, err
	}
	result := store.Result{
		BuildID: in.heartbeat.BuildID, WorkerID: in.heartbeat.WorkerID, Attempt: in.heartbeat.Attempt,
		Success: success, ErrorMessage: in.errorMessage, Fault: in.fault, Ended: endedOf(in.exit, in.signal, in.timedOut),
	}
	switch {
	case !success && in.fault.OfWorker():
		return h.giveBack(ctx, b.Ref(), result)
	case !success:
		return h.record(ctx, result)
	}
	result.ErrorMessage, result.Ended = "", ""
	name := resultName(b.ID, b.Platform, in.fileName)
	if b.State.Final() { // a repeat or a refusal: the file is not kept
		result.File = &store.File{Name: name, Size: in.file.Size, SHA256: in.file.SHA256}
		return h.record(ctx, result)
	}
	h.publish(store.TopicBuildUploaded, store.Uploaded{BuildID: b.ID, WorkerID: in.heartbeat.WorkerID, Step: store.Step{
		What: store.StepUploaded, Attempt: b.Attempt, Took: time.Since(in.begun), Bytes: in.file.Size,
	}})
	file, err := in.file.Stage(ctx, name)
	if err != nil {
		return reply, err
	}
	result.File = &file
	return h.record(ctx, result, in.file)
}

// record is finish within recordTimeout.
func (h *holders) record(ctx context.Context, r store.Result, files ...store.Staged) (api.Uploaded, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, errRecordTimeout)
	defer cancel()
	return h.finish(ctx, r, files...)
}

// giveBack makes a build pending again that its worker could not run.
func (h *holders) giveBack(ctx context.Context, ref store.BuildRef, r store.Result) (reply api.Uploaded, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, recordTimeout, errRecordTimeout)
	defer cancel()
	back, err := h.store.GiveBack(ctx, r)
	if err != nil {
		return reply, fmt.Errorf("giving back build %s: %w", r.BuildID, err)
	}
	reply = uploaded(false)
	if back.State == store.Pending {
		reply = pendingAgain()
	}
	if back.Repeat {
		return reply, nil
	}
	if back.State == store.Pending {
		h.queue.Requeued([]store.BuildRef{ref})
	}
	h.publish(store.TopicBuildUpdated, store.Lost(ref, back.State, string(r.Fault)))
	if back.Quarantined != "" {
		h.publish(store.TopicWorkerUpdated, store.WorkerUpdate{
			WorkerID: r.WorkerID, Status: back.Status, Step: store.Step{What: store.StepQuarantined, Lost: back.Quarantined, TraceID: tracing.ID(ctx)},
		})
	}
	return reply, nil
}

// finish ends a build, settles its files and publishes that. The build is pending again if it is to
// be retried.
func (h *holders) finish(ctx context.Context, r store.Result, files ...store.Staged) (reply api.Uploaded, err error) {
	done, err := h.store.Finish(ctx, r, files...)
	if err != nil {
		return reply, fmt.Errorf("recording result of build %s: %w", r.BuildID, err)
	}
	b := done.Was
	if cache := b.Labels.Cache(); cache != "" {
		h.queue.Warm(r.WorkerID, cache)
	}
	if !done.Repeat && b.State.Held() {
		h.queue.Freed(r.WorkerID)
	} else {
		h.queue.Able(r.WorkerID)
	}
	switch {
	case done.Repeat && done.Again:
		return pendingAgain(), nil
	case done.Again:
		ref := b.Ref()
		ref.WorkerID = r.WorkerID
		h.publish(store.TopicBuildUpdated, store.Lost(ref, store.Pending, store.LostExit))
		return pendingAgain(), nil
	case !done.Repeat:
		u := store.BuildUpdate{
			BuildID: b.ID, State: store.Failed, Platform: b.Platform, WorkerID: r.WorkerID,
			Step: store.Step{What: store.StepEnded, Attempt: b.Attempt, Took: took(b)}, Was: b.Ref(),
		}
		if r.Success {
			u.State = store.Completed
		}
		h.publish(store.TopicBuildUpdated, u)
	}
	return uploaded(r.Success), nil
}

func (h *holders) fail(ctx context.Context, _ echo.Context, in namedIn) (any, error) {
	heartbeat := in.heartbeat(ctx)
	result := store.Result{BuildID: heartbeat.BuildID, WorkerID: heartbeat.WorkerID, Attempt: heartbeat.Attempt, ErrorMessage: in.Body.message, Ended: in.Body.ended()}
	if store.ValidID(result.WorkerID) { // nearly always: the build need not be found first
		reply, err := h.finish(ctx, result)
		switch store.CodeOf(err) {
		case store.NotFound, store.NotAssigned, store.StaleAttempt, store.Conflict: // or a repeat
		default:
			return ended{reply, result.WorkerID}, err
		}
	}
	b, heartbeat, err := h.named(ctx, heartbeat)
	reply := uploaded(false)
	switch {
	case err != nil:
		return nil, err
	case b.State.Final() && b.State != store.Failed:
		return nil, store.NewError(store.Conflict, "Build already finished")
	case b.State != store.Failed: // a repeat changes nothing
		result.WorkerID = heartbeat.WorkerID
		reply, err = h.finish(ctx, result)
	}
	return ended{reply, heartbeat.WorkerID}, err
}
