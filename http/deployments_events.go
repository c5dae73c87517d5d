package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	// deploymentTick is how often a stream looks by itself, because what another
	// controller does is not published here.
	deploymentTick = time.Second
	// deploymentOverlap is how far a stream looks back: rows become visible later
	// than they were stamped.
	deploymentOverlap = 15 * time.Second
)

// serveEvents handles GET /api/deployments/:id/events: "repo" events for what
// changes, "progress" events with the figures, and "end" when the deployment has
// ended. Only its connection waits.
func (h *deployments) serveEvents(c echo.Context, r *route) error {
	id, err := idParam(c, "id", deploymentNotFound)
	if err != nil {
		return err
	}
	if err := h.do(c, r, func(ctx context.Context) error {
		_, err := h.Find(ctx, id)
		return err
	}); err != nil {
		return err
	}
	defer h.changed.follow(id)()
	d := &deploymentEvents{deployments: h, id: id, sent: map[string]time.Time{}, from: lastEvent(c.Request())}
	return h.stream(c, func(ctx context.Context, st *stream) error { return d.follow(ctx, st) })
}

// lastEvent is the time that a returning client has seen last.
func lastEvent(r *http.Request) time.Time {
	us, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64)
	if err != nil || us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// deploymentEvents is what one stream of a deployment has sent.
type deploymentEvents struct {
	*deployments
	id   string
	last string               // the figures
	sent map[string]time.Time // of each repository, its latest change
	from time.Time            // earlier changes were sent
}

// follow sends events until the deployment ends, the client leaves or the server
// closes.
func (d *deploymentEvents) follow(ctx context.Context, st *stream) error {
	tick := time.NewTicker(deploymentTick)
	defer tick.Stop()
	for {
		changed := d.changed.news(d.id)
		ended, err := d.news(ctx, st)
		if err != nil && !store.IsUnavailable(err) { // that is waited for
			return err
		}
		if err := st.send(); err != nil || ended {
			return err
		}
		if _, ok := st.wait(changed, tick.C); !ok {
			return nil
		}
	}
}

// news adds the events since the last ones. The figures are read before the rows,
// so that the end comes after what led to it.
func (d *deploymentEvents) news(ctx context.Context, st *stream) (ended bool, err error) {
	found, err := d.find(ctx, d.id)
	if err != nil {
		return false, err
	}
	since := d.from
	if !since.IsZero() {
		since = since.Add(-deploymentOverlap)
	}
	rows, err := d.Repos(ctx, d.id, since)
	if err != nil {
		return false, err
	}
	for _, r := range rows {
		if !r.UpdatedAt.After(d.sent[r.Name]) {
			continue
		}
		d.sent[r.Name] = r.UpdatedAt
		if r.UpdatedAt.After(d.from) {
			d.from = r.UpdatedAt
		}
		if err := st.add(d.position(), "repo", api.NewDeploymentRepo(r)); err != nil {
			return false, err
		}
	}
	figures, err := marshal(found)
	if err != nil || string(figures) == d.last {
		return found.Ended(), err
	}
	d.last = string(figures)
	name := "progress"
	if found.Ended() {
		name = "end"
	}
	return found.Ended(), st.add(d.position(), name, found)
}

// position is the id of an event: how far the stream is.
func (d *deploymentEvents) position() string {
	if d.from.IsZero() {
		return ""
	}
	return strconv.FormatInt(d.from.UnixMicro(), 10)
}
