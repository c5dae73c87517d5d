package http

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"mime/multipart"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/storage"
	"takt/store"
	"takt/store/tracing"
)

// submissions makes builds.
type submissions struct {
	edge    *edge.Server
	cfg     Config
	builds  *builds
	store   Builds
	queue   Queue
	forms   *uploads
	secrets Secrets
}

func (h *submissions) routes() []edge.Route {
	submit, legacy := h.edge.Of(api.SubmitBuild.Route), h.edge.Of(api.SubmitBuildLegacy.Route)
	submit.Handle, legacy.Handle = h.submitWith(api.SubmitBuild.Status), h.submitWith(api.SubmitBuildLegacy.Status)
	return []edge.Route{submit, legacy, edge.On(h.edge, api.RetryBuild, h.retry), edge.On(h.edge, api.RetryBuilds, h.retrySeveral)}
}

// submission is the part of a POST /api/builds form that has arrived.
type submission struct {
	id       string
	platform store.Platform
	priority int
	labels   store.Labels
	require  store.Require
	prefer   store.Require
	retryOf  string
	by       string // the name of the submitter's key; "" for the API key
	source   *storage.Upload
	certs    *storage.Upload // nil for none
	once     *edge.Once      // nil without an Idempotency-Key
	refused  error           // why it is refused unless it is a repeat
	inputs   store.Inputs
	taken    []string // the fields of inputs that have arrived
}

func (in *submission) discard() {
	in.source.Discard()
	in.certs.Discard()
}

// submitWith returns what submits a build and answers with status.
func (h *submissions) submitWith(status int) edge.Handler {
	return func(ctx context.Context, c echo.Context) (any, error) {
		again, err := edge.ReadOnce(c.Request().Header, h.cfg.APIKey, edge.CallerOf(ctx).KeyName())
		if err != nil {
			return nil, err
		}
		// A request with a key may be a repeat, which is answered even if the queue is
		// full.
		if err := h.forms.files.Room(); err != nil {
			return nil, err
		}
		limited := ""
		if k := edge.CallerOf(ctx).Key; k != nil && k.MaxPending > 0 { // others need no statement
			limited = k.Name
		}
		if again == nil { // before the body is read; Submit decides
			if err := h.room(ctx, limited); err != nil {
				return nil, err
			}
		}
		in := &submission{id: store.NewID(), once: again, by: edge.CallerOf(ctx).KeyName()}
		defer in.discard()
		var b store.Build
		token := store.NewBuildToken()
		err = tracing.Submit(ctx, in.id, func(ctx context.Context) (err error) {
			if err = h.read(ctx, c, in); err == nil {
				b, err = h.record(ctx, in, status, token)
			}
			return err
		})
		if found, ok := errors.AsType[*store.Repeated](err); ok {
			return in.replay(c, found)
		}
		return edge.Reply{Status: status, Body: api.NewSubmitted(b, token)}, err
	}
}

// room returns QueueFull or KeyQueueFull if a submit by a key, "" for one without a limit, would be
// refused now, and nil if it can't tell.
func (h *submissions) room(ctx context.Context, key string) error {
	if err := h.queue.Full(ctx); err != nil || key == "" {
		return err
	}
	if err := h.store.KeyRoom(ctx, key); store.CodeOf(err) == store.KeyQueueFull {
		return err
	}
	return nil
}

// read reads the form. It validates at the end because clients send the source before the
// other fields.
func (h *submissions) read(ctx context.Context, c echo.Context, in *submission) error {
	err := h.forms.Read(c, func(f *edge.Form, p *multipart.Part) error { return h.take(ctx, f, p, in) })
	switch {
	case err != nil:
		return err
	case in.source == nil:
		return edge.Invalid("Source file required")
	case !slices.Contains(h.cfg.Platforms, in.platform):
		return wrongPlatform(h.cfg.Platforms)
	}
	if err := edge.CallerOf(ctx).Key.Submits(in.priority); err != nil {
		return err
	}
	return h.checkInputs(ctx, in)
}

// wrongPlatform returns the error for a platform that is not among those given.
func wrongPlatform(platforms []store.Platform) error {
	return edge.Invalid("Valid platform required (" + strings.Join(edge.Each(platforms, func(p store.Platform) string { return string(p) }), "|") + ")")
}

// take reads the parts that takt needs. It skips all others unread, such as the account
// password that old clients send.
func (h *submissions) take(ctx context.Context, f *edge.Form, p *multipart.Part, in *submission) (err error) {
	var v string
	switch p.FormName() {
	case "source":
		if in.source != nil {
			return edge.Invalid("More than one source file")
		}
		in.source, err = h.forms.file(ctx, f, p, "Source file", h.cfg.MaxSource, sourceName(in.id), false)
	case "certs":
		if in.certs != nil {
			return edge.Invalid("More than one certs file")
		}
		in.certs, err = h.forms.file(ctx, f, p, "Certs file", h.cfg.MaxCerts, certsName(in.id), true)
	case "platform":
		v, err = f.Field(p)
		in.platform = store.Platform(v)
	case "priority":
		if v, err = f.Field(p); err == nil {
			in.priority, err = store.ParsePriority(v)
		}
	case "labels":
		if v, err = f.Field(p); err == nil {
			in.labels, err = store.ParseLabels(v)
		}
	case "require":
		if v, err = f.Field(p); err == nil {
			in.require, err = store.ParseRequire("require", v)
		}
	case "prefer":
		if v, err = f.Field(p); err == nil {
			in.prefer, err = store.ParseRequire("prefer", v)
		}
	default:
		err = h.takeInput(f, p, in)
	}
	return err
}

// record creates the build and settles its files.
func (h *submissions) record(ctx context.Context, in *submission, status int, token string) (b store.Build, err error) {
	sub := store.Submission{
		ID: in.id, Platform: in.platform, Priority: in.priority, Labels: in.labels, TokenHash: store.HashToken(token),
		RetryOf: in.retryOf, Submitter: in.by, Require: in.require, Prefer: in.prefer,
		Inputs: in.given(), Refused: in.refused,
	}
	if in.once != nil {
		sub.Once = in.storedOnce(status, token)
	}
	files, err := in.stage(ctx, &sub)
	if err == nil {
		b, err = h.store.Submit(ctx, sub, files...)
	}
	if err != nil {
		return b, fmt.Errorf("submitting build %s: %w", in.id, err)
	}
	h.queue.Enqueued(b)
	h.builds.publish(store.TopicBuildUpdated, store.BuildUpdate{
		BuildID: b.ID, State: store.Pending, Platform: b.Platform,
		Step: store.Step{What: store.StepSubmitted, Bytes: sub.Source.Size},
	})
	return b, nil
}

// stage stages the files and describes them in sub.
func (in *submission) stage(ctx context.Context, sub *store.Submission) (files []store.Staged, err error) {
	if sub.Source, err = in.source.Stage(ctx, sourceName(in.id)); err != nil || in.certs == nil {
		return []store.Staged{in.source}, err
	}
	certs, err := in.certs.Stage(ctx, certsName(in.id))
	if err != nil {
		in.source.Abort(ctx)
	}
	sub.Certs = &certs
	return []store.Staged{in.source, in.certs}, err
}

// retry creates a build with copies of the old one's files, so that the client need not send
// them again. The old build may be in any state.
func (h *submissions) retry(ctx context.Context, in api.RetryBuildIn) (reply api.Retried, err error) {
	old, err := h.builds.find(ctx, in.BuildAccess, store.ScopeOperate)
	if err != nil {
		return reply, err
	}
	key, by := edge.CallerOf(ctx).Key, edge.CallerOf(ctx).KeyName()
	if caller := edge.CallerOf(ctx); !caller.APIKey && caller.Key == nil && caller.Session == nil { // a build's token
		key, by = h.edge.Keys.Called(old.Submitter), old.Submitter
		if key == nil && by != "" { // it was revoked or has expired
			key = &store.NamedKey{Name: by}
		}
	}
	if err := key.Submits(old.Priority); err != nil { // it may have been raised, or the key's limit lowered
		return reply, err
	}
	if err := h.room(ctx, by); err != nil { // before files are copied; Submit decides
		return reply, err
	}
	if err := h.forms.files.Room(); err != nil {
		return reply, err
	}
	if err := h.store.RetryWaits(ctx, old.ID); err != nil {
		return reply, err
	}
	inputs, err := h.changed(ctx, old, in.Body.Params)
	if err != nil {
		return reply, err
	}
	detail := map[string]any{}
	if len(in.Body.Params) > 0 {
		detail["params"] = slices.Sorted(maps.Keys(in.Body.Params)) // values are nobody else's business
	}
	err = h.builds.audit.do(ctx, entry{"retry", "build/" + old.ID, in.Reason, detail}, func(ctx context.Context) error {
		made := &submission{id: store.NewID(), platform: old.Platform, priority: old.Priority, labels: old.Labels, require: old.Require.Public(), prefer: old.Prefer, retryOf: old.ID, by: by, inputs: inputs}
		defer made.discard()
		var b store.Build
		token := store.NewBuildToken()
		err := tracing.Submit(ctx, made.id, func(ctx context.Context) (err error) {
			if err = h.copyFiles(ctx, old, made); err == nil {
				b, err = h.record(ctx, made, api.RetryBuild.Status, token)
			}
			return err
		})
		first := api.NewSubmitted(b, token)
		reply = api.Retried{
			ID: first.ID, Status: first.Status, SubmittedAt: first.SubmittedAt, AccessToken: token, OriginalBuildID: old.ID, Inputs: first.Inputs,
		}
		return err
	})
	return reply, err
}

// copyFiles adds copies of old's files to in.
func (h *submissions) copyFiles(ctx context.Context, old store.Build, in *submission) error {
	const gone = "Original build source no longer available. Please submit a new build."
	if old.Source == nil {
		return store.NewError(store.InvalidState, gone)
	}
	var err error
	in.source, err = h.forms.files.Duplicate(ctx, *old.Source, "")
	if err == nil && old.Certs != nil {
		in.certs, err = h.forms.files.Duplicate(ctx, *old.Certs, certsName(in.id))
	}
	if store.CodeOf(err) == store.NotFound {
		return store.Wrap(store.InvalidState, gone, err)
	}
	if err != nil {
		return fmt.Errorf("copying a build's files: %w", err)
	}
	return nil
}
