package http

import (
	"context"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	// deploymentTick is how often a stream reads the database without being woken,
	// because the changes of other controllers are not published here.
	deploymentTick = time.Second
	// deploymentOverlap is how far a stream looks back, because rows become visible some
	// time after their timestamp.
	deploymentOverlap = 15 * time.Second
)

// serveEvents handles GET /api/deployments/:id/events: "repo" events for what changes,
// "progress" events with the figures, and "end" when the deployment has ended. It holds
// no place, because only its connection waits.
func (h *deployments) serveEvents(c echo.Context, r *edge.Route) error {
	in, err := edge.Read(c, api.FollowDeployment)
	if err != nil {
		return err
	}
	id := string(in.ID)
	if err := h.edge.Do(c, r, func(ctx context.Context) error {
		_, err := h.store.Find(ctx, id)
		return err
	}); err != nil {
		return err
	}
	defer h.changed.follow(id)()
	d := &deploymentEvents{h: h, id: id, sent: map[string]time.Time{}, from: lastEvent(in.LastEventID)}
	return h.edge.Stream(c, func(ctx context.Context, st *edge.Stream) error { return d.follow(ctx, st) })
}

// lastEvent is the time of the last event that a reconnecting client has seen.
func lastEvent(id string) time.Time {
	us, err := strconv.ParseInt(id, 10, 64)
	if err != nil || us <= 0 {
		return time.Time{}
	}
	return time.UnixMicro(us)
}

// deploymentEvents is the state of one stream of a deployment.
type deploymentEvents struct {
	h    *deployments
	id   string
	last string               // the figures
	sent map[string]time.Time // per repository, its latest change that was sent
	from time.Time            // earlier changes were already sent
}

// follow sends events until the deployment ends, the client leaves or the server
// closes.
func (d *deploymentEvents) follow(ctx context.Context, st *edge.Stream) error {
	tick := time.NewTicker(deploymentTick)
	defer tick.Stop()
	for {
		changed := d.h.changed.news(d.id)
		ended, err := d.news(ctx, st)
		if err != nil && !store.IsUnavailable(err) { // the stream waits for the end of an outage
			return err
		}
		if err := st.Send(); err != nil || ended {
			return err
		}
		if _, ok := st.Wait(changed, tick.C); !ok {
			return nil
		}
	}
}

// news adds the events since the last call. It reads the figures before the rows, so that
// the end comes after the changes that led to it.
func (d *deploymentEvents) news(ctx context.Context, st *edge.Stream) (ended bool, err error) {
	found, err := d.h.find(ctx, d.id)
	if err != nil {
		return false, err
	}
	since := d.from
	if !since.IsZero() {
		since = since.Add(-deploymentOverlap)
	}
	rows, err := d.h.store.Repos(ctx, d.id, since)
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
		if err := st.Add(d.position(), "repo", api.NewDeploymentRepo(r)); err != nil {
			return false, err
		}
	}
	figures, err := edge.Marshal(found)
	if err != nil || string(figures) == d.last {
		return found.Ended(), err
	}
	d.last = string(figures)
	name := "progress"
	if found.Ended() {
		name = "end"
	}
	return found.Ended(), st.Add(d.position(), name, found)
}

// position is the id of an event: how far the stream has come.
func (d *deploymentEvents) position() string {
	if d.from.IsZero() {
		return ""
	}
	return strconv.FormatInt(d.from.UnixMicro(), 10)
}
