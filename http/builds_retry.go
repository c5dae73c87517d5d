package http

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// handleBuildRetry handles POST /api/builds/:id/retry: a new build with the old
// one's files, which are not sent again. The old one may be in any state.
func (s *Server) handleBuildRetry(ctx context.Context, c echo.Context) error {
	old, err := s.build(ctx, c)
	if err != nil {
		return err
	}
	if s.deps.Queue.Full(ctx) { // before files are copied; Submit decides
		return queueFull()
	}
	id, err := newID()
	if err != nil {
		return err
	}
	in := &submission{id: id, platform: old.Platform, priority: old.Priority, labels: old.Labels, retryOf: old.ID}
	defer in.discard()
	if err := s.copyFiles(ctx, old, in); err != nil {
		return err
	}
	token := store.NewBuildToken()
	b, err := s.recordSubmission(ctx, in, http.StatusOK, token)
	if err != nil {
		return err
	}
	s.enqueued(b)
	return s.reply(c, http.StatusOK, api.Retried{
		ID: b.ID, Status: b.State.Wire(), SubmittedAt: api.Millis(b.SubmittedAt.UnixMilli()),
		AccessToken: token, OriginalBuildID: old.ID,
	})
}

func filesGone(err error) error {
	return store.Wrap(store.InvalidState, "Original build source no longer available. Please submit a new build.", err)
}

// copyFiles gives in the files of old.
func (s *Server) copyFiles(ctx context.Context, old store.Build, in *submission) error {
	if old.Source == nil {
		return filesGone(nil)
	}
	source, err := s.deps.Files.Duplicate(ctx, *old.Source)
	if err != nil {
		return copyFailure(err)
	}
	in.source = &arrival{upload: source, file: *old.Source}
	if old.Certs == nil {
		return nil
	}
	if in.certs, err = s.sealAgain(ctx, *old.Certs, certsName(in.id)); err != nil {
		return copyFailure(err)
	}
	return nil
}

func copyFailure(err error) error {
	if store.CodeOf(err) == store.NotFound {
		return filesGone(err)
	}
	return fmt.Errorf("copying a build's files: %w", err)
}

// sealAgain copies a sealed file: each opens under its own name only.
func (s *Server) sealAgain(ctx context.Context, f store.File, name string) (*arrival, error) {
	from, err := s.deps.Files.OpenSealed(ctx, f)
	if err != nil {
		return nil, err
	}
	defer from.Close() //nolint:errcheck // only read from
	to, err := s.deps.Files.CreateSealed(ctx, f.Size, name)
	if err != nil {
		return nil, err
	}
	a := &arrival{upload: to}
	if _, err = to.ReadFrom(from); err == nil {
		a.file.Size, a.file.SHA256, err = to.Finish()
	}
	if err == nil && a.file.SHA256 != f.SHA256 {
		err = errors.New("content has changed at rest")
	}
	if err != nil {
		to.Discard()
		return nil, err
	}
	return a, nil
}
