package http

import (
	"context"
	"errors"
	"fmt"
	"mime/multipart"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// queueFullRetry is what a client is told to wait that finds the queue full.
const queueFullRetry = 5 * time.Second

func queueFull() error {
	return &store.Error{Code: store.QueueFull, Message: "Build queue full, try again later", RetryAfter: queueFullRetry}
}

// submission is a form of POST /api/builds as far as it has arrived.
type submission struct {
	id       string
	platform store.Platform
	priority int
	labels   store.Labels
	retryOf  string
	source   *arrival
	certs    *arrival
	once     *once // nil without an Idempotency-Key
}

func (in *submission) discard() {
	in.source.discard()
	in.certs.discard()
}

// submitWith handles POST /api/builds (201) and POST /api/builds/submit (200).
func (s *Server) submitWith(status int) handler {
	return func(ctx context.Context, c echo.Context) error { return s.handleBuildSubmit(ctx, c, status) }
}

func (s *Server) handleBuildSubmit(ctx context.Context, c echo.Context, status int) error {
	again, err := s.once(c.Request().Header)
	if err != nil {
		return err
	}
	// What has a key may be a repeat, which is answered whatever the queue.
	if again == nil && s.deps.Queue.Full(ctx) { // before the body is read; Submit decides
		return queueFull()
	}
	id, err := newID()
	if err != nil {
		return err
	}
	in := &submission{id: id, once: again}
	defer in.discard()
	if err := s.readSubmission(ctx, c, in); err != nil {
		return err
	}
	token := store.NewBuildToken()
	b, err := s.recordSubmission(ctx, in, status, token)
	if found, ok := errors.AsType[*store.Repeated](err); ok {
		return s.replay(c, in, found)
	}
	if err != nil {
		return err
	}
	s.enqueued(b)
	return s.reply(c, status, submitted(b, token))
}

func submitted(b store.Build, token string) api.Submitted {
	return api.Submitted{
		ID: b.ID, Status: b.State.Wire(), Platform: string(b.Platform),
		SubmittedAt: api.Millis(b.SubmittedAt.UnixMilli()), AccessToken: token,
	}
}

// enqueued says that b was committed.
func (s *Server) enqueued(b store.Build) {
	s.deps.Queue.Enqueued(b.Platform, b.Labels.Cache())
	s.deps.Announce.BuildUpdated(store.BuildUpdate{BuildID: b.ID, State: store.Pending, Platform: b.Platform})
}

// readSubmission reads the form. Clients send the source before they say what
// it is for, so everything is judged at the end.
func (s *Server) readSubmission(ctx context.Context, c echo.Context, in *submission) error {
	f, err := s.openForm(c)
	if err != nil {
		return err
	}
	defer f.close()
	for {
		p, err := f.next()
		if err != nil {
			return err
		}
		if p == nil {
			break
		}
		if err := s.readSubmissionPart(ctx, f, p, in); err != nil {
			return err
		}
	}
	if in.source == nil || in.source.empty {
		return invalid("Source file required")
	}
	if !in.platform.Valid() {
		return invalid("Valid platform required (ios|android)")
	}
	if in.certs != nil && in.certs.empty {
		in.certs.discard()
		in.certs = nil
	}
	return nil
}

// readSubmissionPart takes what takt wants. Everything else, such as the
// account's password that old clients send, is skipped unseen.
func (s *Server) readSubmissionPart(ctx context.Context, f *form, p *multipart.Part, in *submission) (err error) {
	switch p.FormName() {
	case "source":
		if in.source != nil {
			return invalid("More than one source file")
		}
		in.source, err = f.file(ctx, p, "Source file", s.cfg.MaxSource, "")
	case "certs":
		if in.certs != nil {
			return invalid("More than one certs file")
		}
		in.certs, err = f.file(ctx, p, "Certs file", s.cfg.MaxCerts, certsName(in.id))
	case "platform":
		var v string
		v, err = f.field(p)
		in.platform = store.Platform(v)
	case "priority":
		var v string
		if v, err = f.field(p); err == nil {
			in.priority, err = priority(v)
		}
	case "labels":
		var v string
		if v, err = f.field(p); err == nil {
			in.labels, err = store.ParseLabels(v)
		}
	}
	return err
}

func priority(v string) (int, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < -10 || n > 10 {
		return 0, invalid("priority must be a whole number from -10 to 10")
	}
	return n, nil
}

// recordSubmission makes the build. Its files get their names within the
// transaction; they stay only if it may have been committed.
func (s *Server) recordSubmission(ctx context.Context, in *submission, status int, token string) (b store.Build, err error) {
	sub := store.Submission{
		ID: in.id, Platform: in.platform, Priority: in.priority, Labels: in.labels, TokenHash: store.HashToken(token),
		RetryOf: in.retryOf,
	}
	if in.once != nil {
		sub.Once = in.once.of(in, status, token)
	}
	if sub.Source, err = in.source.send(ctx, sourceName(in.id)); err != nil {
		return b, fmt.Errorf("storing the source of build %s: %w", in.id, err)
	}
	if in.certs != nil {
		certs, err := in.certs.send(ctx, certsName(in.id))
		if err != nil {
			return b, fmt.Errorf("storing the certs of build %s: %w", in.id, err)
		}
		sub.Certs = &certs
	}
	placed := false
	b, err = s.deps.Builds.Submit(ctx, sub, func() error {
		placed = true
		if sub.Certs != nil {
			if err := in.certs.upload.Place(sub.Certs.Name); err != nil {
				return err
			}
		}
		return in.source.upload.Place(sub.Source.Name)
	})
	in.source.settle(err)
	in.certs.settle(err)
	if err != nil {
		if placed && !errors.Is(err, store.ErrOutcomeUnknown) {
			err = errors.Join(err, s.deps.Files.RemoveBuild(in.id))
		}
		return b, fmt.Errorf("submitting build %s: %w", in.id, err)
	}
	return b, nil
}
