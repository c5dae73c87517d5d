package http

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// nextPatience is how long the answer to the end of a build waits for the worker's next build to
// be assigned. One that is assigned later is given again, because the worker's token is older.
const nextPatience = 2 * time.Second

var errNextTooSlow = errors.New("the next build was not assigned in time")

// ended answers the end of a build.
type ended struct {
	api.Uploaded
	worker string // whose build it was; "" if that is not known
}

// ends returns r, whose handler returns an ended, as a route that also gives the worker its next
// build, if it asks for that. The end of the build comes first and does not depend on the rest:
// once it is recorded the reply says so, and has no token if the poll fails.
//
// The poll arrives within the request's process, and waits for its batch without the request's
// token and place, as other polls do.
func (h *polls) ends(r edge.Route) edge.Route {
	serve := r.Serve
	r.Serve = func(c echo.Context, r *edge.Route) error {
		req, asks := h.next(c.Request())
		if !asks {
			return serve(c, r)
		}
		var end *ended
		var await store.AwaitReply
		both := *r
		both.Handle = func(ctx context.Context, c echo.Context) (any, error) {
			v, err := r.Handle(ctx, c)
			if e, ok := v.(ended); ok && err == nil {
				end, await = &e, h.arriveNext(ctx, c, req, e.worker)
				return nil, nil // the reply is sent below
			}
			return v, err
		}
		err := serve(c, &both)
		if end == nil || errors.Is(err, http.ErrAbortHandler) {
			return err
		}
		if await != nil {
			h.addNext(c, &end.Uploaded, req, await, err)
		}
		return h.edge.Reply(c, end.Uploaded)
	}
	return r
}

// next reads the poll that comes with the end of a build. It returns false if there is none, or
// one that would be refused, because that must not refuse the build's end.
func (h *polls) next(r *http.Request) (req store.PollRequest, asks bool) {
	if r.URL.RawQuery == "" || r.URL.Query().Get("next") != "1" || edge.Header(r.Header, edge.HeaderWorkerToken) == "" {
		return req, false
	}
	req, _, err := h.read(r)
	req.Max = 0 // one build ends, one begins
	return req, err == nil
}

// arriveNext sends a poll of a worker to the queue. It returns nil if that is refused.
func (h *polls) arriveNext(ctx context.Context, c echo.Context, req store.PollRequest, worker string) store.AwaitReply {
	if req.WorkerID = worker; worker == "" || ctx.Err() != nil || h.quota.Admit(c.Response().Header(), h.quotaKey(c, req)) != nil ||
		h.bound.check(ctx, edge.KeyOf(c), req.Token) != nil {
		return nil
	}
	await, err := h.queue.Arrive(ctx, req, 0)
	if err != nil {
		return nil
	}
	return await
}

// addNext adds the poll's reply to the answer, unless the poll fails.
func (h *polls) addNext(c echo.Context, to *api.Uploaded, req store.PollRequest, await store.AwaitReply, ended error) {
	ctx, cancel := context.WithTimeoutCause(c.Request().Context(), nextPatience, errNextTooSlow)
	defer cancel()
	reply, err := h.wait(ctx, req, await, ended)
	if err != nil {
		return
	}
	a := h.answer(c.Request().Context(), req, reply)
	to.Job, to.AccessToken, to.QueueSize = a.Job, a.AccessToken, a.QueueSize
}
