package http

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/pprof"
	"runtime/trace"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

type debugHandler struct {
	edge     *edge.Server
	describe func(ctx context.Context) api.Debug
}

func (h *debugHandler) routes() []edge.Route {
	profile := func(ctx context.Context, c echo.Context, in api.TakeProfileIn) (any, error) {
		content, text, err := h.profile(ctx, in)
		if err != nil {
			return nil, err
		}
		kind := "application/octet-stream"
		if text {
			kind = "text/plain; charset=utf-8"
		}
		h.edge.ReplyBytes(c, http.StatusOK, []string{kind}, content)
		return nil, nil
	}
	return []edge.Route{edge.On(h.edge, api.ShowDebug, h.show), edge.OnRequest(h.edge, api.TakeProfile, profile)}
}

// show returns what belongs into a report of a fault.
func (h *debugHandler) show(ctx context.Context, _ api.None) (api.Debug, error) {
	return h.describe(ctx), nil
}

// profile takes a profile by its name in runtime/pprof, or profile (of the processor) or
// trace, which record for a while. It reports whether the profile is text.
func (h *debugHandler) profile(ctx context.Context, in api.TakeProfileIn) (content []byte, text bool, err error) {
	level := in.Debug
	unit, err := h.edge.Limit(edge.RuleProfiles).Take(ctx, store.Share{}, nil)
	if err != nil {
		return nil, false, err
	}
	defer unit.Release()
	record := func(start func(io.Writer) error, stop func()) func(io.Writer) error {
		level = 0 // recordings have no text
		return func(w io.Writer) error {
			if err := start(w); err != nil {
				return store.Wrap(store.Conflict, "A profile is being taken already", err)
			}
			defer stop()
			return sleep(ctx, time.Duration(in.Seconds)*time.Second)
		}
	}
	var write func(io.Writer) error
	switch in.Name {
	case "profile":
		write = record(pprof.StartCPUProfile, pprof.StopCPUProfile)
	case "trace":
		write = record(trace.Start, trace.Stop)
	default:
		p := pprof.Lookup(in.Name)
		if p == nil {
			return nil, false, store.NewError(store.NotFound, "No such profile")
		}
		write = func(w io.Writer) error { return p.WriteTo(w, level) }
	}
	var b bytes.Buffer
	err = write(&b)
	return b.Bytes(), level > 0, err
}

var errProfileCut = errors.New("the server is closing")

// sleep waits for d. It fails early if the client leaves or the server
// closes.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-edge.Stopping(ctx).Done():
		return store.Wrap(store.Unavailable, "The controller is stopping", errProfileCut)
	}
}
