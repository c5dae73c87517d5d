package http

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	deploymentEventsPath = "/api/deployments/:id/events"
	// deploymentTick is how often a stream looks by itself: what another
	// controller does is told to nobody here.
	deploymentTick = time.Second
	// deploymentOverlap is how far a stream looks back: rows become visible later
	// than they were stamped.
	deploymentOverlap = 15 * time.Second
)

// serveDeploymentEvents handles GET /api/deployments/:id/events: "repo" events
// for what changes, "progress" events with the figures, and "end" when the
// deployment has ended. Only its connection waits, no actor.
func (s *Server) serveDeploymentEvents(c echo.Context, r route) error {
	id, err := deploymentID(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if err := s.deps.Requests.Do(ctx, work(c, r), func(ctx context.Context) error {
		_, err := s.deps.Deployments.Find(ctx, id)
		return err
	}); err != nil {
		return err
	}
	leave, err := s.takeStream()
	if err != nil {
		return err
	}
	defer leave()
	changed, unwatch, err := s.deps.Deployments.Watch(ctx, id)
	if err != nil {
		return &store.Error{Code: store.Unavailable, Message: "Events are not told just now, try again", RetryAfter: time.Second, Err: err}
	}
	defer unwatch()
	d := &deploymentEvents{s: s, id: id, sent: map[string]time.Time{}, from: lastEvent(c.Request())}
	s.runStream(ctx, c, func(st *stream) error { return d.follow(ctx, st, changed) })
	return nil
}

// lastEvent is the time that a returning client has seen last.
func lastEvent(r *http.Request) time.Time {
	us, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64)
	if err != nil || us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// deploymentEvents is what one stream of a deployment has told.
type deploymentEvents struct {
	s    *Server
	id   string
	last string               // the figures
	sent map[string]time.Time // of each repository, its latest change
	from time.Time            // changes before are not looked for
}

// follow tells of the deployment until it ends, the client leaves or the server
// closes.
func (d *deploymentEvents) follow(ctx context.Context, st *stream, changed <-chan struct{}) error {
	tick := time.NewTicker(deploymentTick)
	defer tick.Stop()
	for {
		text, ended, err := d.news(ctx)
		if err != nil && store.CodeOf(err) != store.Unavailable { // that is waited for
			return err
		}
		if len(text) > 0 {
			if err := st.write(text); err != nil {
				return err
			}
		}
		if ended || !st.pause(ctx) {
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-st.ping.C:
			if err := st.write([]byte(": ping\n\n")); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-st.stopped.Done():
			return nil
		}
	}
}

// news are the events since the last ones. The figures are read before the rows,
// so that the end comes after what led to it.
func (d *deploymentEvents) news(ctx context.Context) (text []byte, ended bool, err error) {
	found, err := d.s.findDeployment(ctx, d.id)
	if err != nil {
		return nil, false, err
	}
	since := d.from
	if !since.IsZero() {
		since = since.Add(-deploymentOverlap)
	}
	rows, err := d.s.deps.Deployments.Repos(ctx, d.id, since)
	if err != nil {
		return nil, false, err
	}
	for _, r := range rows {
		if !r.UpdatedAt.After(d.sent[r.Name]) {
			continue
		}
		d.sent[r.Name] = r.UpdatedAt
		if r.UpdatedAt.After(d.from) {
			d.from = r.UpdatedAt
		}
		if text, err = d.event(text, "repo", deploymentRepo(r)); err != nil {
			return nil, false, err
		}
	}
	text, err = d.figures(text, found)
	return text, found.Ended(), err
}

// figures adds the figures if they have changed.
func (d *deploymentEvents) figures(text []byte, found api.Deployment) ([]byte, error) {
	body, err := marshal(found)
	if err != nil || string(body) == d.last {
		return text, err
	}
	d.last = string(body)
	if found.Ended() {
		return d.event(text, "end", found)
	}
	return d.event(text, "progress", found)
}

func (d *deploymentEvents) event(text []byte, name string, v any) ([]byte, error) {
	body, err := marshal(v)
	if err != nil {
		return text, err
	}
	if !d.from.IsZero() {
		text = fmt.Appendf(text, "id: %d\n", d.from.UnixMicro())
	}
	return fmt.Appendf(text, "event: %s\ndata: %s\n\n", name, body), nil
}
