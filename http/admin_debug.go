package http

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	profileSeconds    = 10
	maxProfileSeconds = 60
)

// inside shows what happens in the process. Profiles are taken one at a time, because
// each costs all requests something.
type inside struct {
	edge     *edge.Server
	describe func(ctx context.Context) api.Debug
	turn     chan struct{} // holds one token while a profile is taken
}

// show handles GET /admin/debug: what belongs into a report of a fault.
func (h *inside) show(ctx context.Context, _ echo.Context) (any, error) {
	return h.describe(ctx), nil
}

// profile handles GET /admin/debug/pprof/:name: a profile by its name in runtime/pprof,
// or profile (of the processor) or trace, which record for ?seconds=. ?debug=1 writes
// text, and ?debug=2 the stack of each goroutine.
func (h *inside) profile(ctx context.Context, c echo.Context) (any, error) {
	seconds, err := strconv.Atoi(cmp.Or(c.QueryParam("seconds"), strconv.Itoa(profileSeconds)))
	if err != nil || seconds < 1 || seconds > maxProfileSeconds {
		return nil, edge.Invalid("seconds must be 1 to " + strconv.Itoa(maxProfileSeconds))
	}
	level, err := strconv.Atoi(cmp.Or(c.QueryParam("debug"), "0"))
	if err != nil || level < 0 || level > 2 {
		return nil, edge.Invalid("debug must be 0, 1 or 2")
	}
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	default:
		return nil, store.NewError(store.Conflict, "A profile is being taken already")
	}
	record := func(start func(io.Writer) error, stop func()) func(io.Writer) error {
		level = 0 // recordings have no text
		return func(w io.Writer) error {
			if err := start(w); err != nil {
				return store.Wrap(store.Conflict, "A profile is being taken already", err)
			}
			defer stop()
			return lasting(ctx, time.Duration(seconds)*time.Second)
		}
	}
	var write func(io.Writer) error
	switch name := c.Param("name"); name {
	case "profile":
		write = record(pprof.StartCPUProfile, pprof.StopCPUProfile)
	case "trace":
		write = record(trace.Start, trace.Stop)
	default:
		p := pprof.Lookup(name)
		if p == nil {
			return nil, store.NewError(store.NotFound, "No such profile")
		}
		write = func(w io.Writer) error { return p.WriteTo(w, level) }
	}
	var content bytes.Buffer
	if err := write(&content); err != nil {
		return nil, err
	}
	kind := "application/octet-stream"
	if level > 0 {
		kind = "text/plain; charset=utf-8"
	}
	h.edge.ReplyBytes(c, 200, []string{kind}, content.Bytes())
	return nil, nil
}

var errProfileCut = errors.New("the server is closing")

// lasting waits for d. It returns an error if the client leaves or the server closes
// before.
func lasting(ctx context.Context, d time.Duration) error {
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
