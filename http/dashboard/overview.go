package dashboard

import (
	"context"
	"slices"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

// overviewData is the data of the overview.
type overviewData struct {
	*situation
	Builds bool // the service runs
	Queue  queueData
	Recent []store.Build
}

// loadOverview reads the overview. While the database is away, the data beside the error has
// the lists that were read last.
func (d *Dashboard) loadOverview(ctx context.Context, v *view) (any, error) {
	data := overviewData{situation: d.situationNow(ctx), Builds: d.runs(api.ServiceBuilds)}
	few, err := store.Page{Limit: 5}, error(nil)
	switch {
	case data.Builds:
		ended := store.BuildFilter{States: []store.BuildState{store.Completed, store.Failed, store.Cancelled}}
		if data.Queue, err = d.readQueue(ctx, v, few, few); err == nil {
			data.Recent, _, err = d.deps.Builds.List(ctx, ended, few)
		}
	case data.Away:
		err = errAway
	}
	if was, _, _ := d.known.of(v.data()); err != nil && was != nil {
		last := was.(overviewData) // only this function makes it
		data.Queue, data.Recent = last.Queue, last.Recent
	}
	return data, err
}

// situationNow returns the situation, which is read within [forecast.Age]. All pages share it, so reading it does not end with the
// request that began it.
func (d *Dashboard) situationNow(ctx context.Context) *situation {
	s, err := d.situation.Get(ctx, func(ctx context.Context) (*situation, error) {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), forecast.Age, errSlowPage)
		defer cancel()
		s := &situation{}
		if away := !d.deps.Ready() || d.runs(api.ServiceBuilds) && d.readSituation(ctx, s) != nil; away {
			*s = d.last
			s.Away = true
		}
		d.last = *s
		d.readProcess(s)
		return s, nil
	})
	if err != nil { // the request has ended
		return &situation{}
	}
	return s
}

// readSituation reads what a situation has from the database.
func (d *Dashboard) readSituation(ctx context.Context, s *situation) error {
	now, err := d.deps.Forecast.Now(ctx)
	if err != nil {
		return err
	}
	s.Reading = *now
	s.Workers, _, s.States, err = d.deps.Store.Fleet(ctx, store.WorkerFilter{Sort: "state", Present: true}, store.Page{Limit: pageRows})
	if err == nil && d.deps.Heartbeat != nil && s.States[store.WorkerSilent] > 0 {
		s.Timeouts, _ = d.deps.Heartbeat.Timeouts(ctx) // pages do without
	}
	return err
}

// readProcess reads what a situation has from this process.
func (d *Dashboard) readProcess(s *situation) {
	root := d.deps.Tree(false)
	s.Down = edge.Each(nodes(&root, ails), func(n *api.TreeNode) string { return n.Path })
	now, refused := time.Now(), float32(0)
	for _, f := range [...]figure{figRejectedRegular, figRejectedHard} {
		rates := d.deps.History.over(f, 0, now) // by the minute, in steps of ten seconds
		for _, rate := range rates[len(rates)-30:] {
			if rate > 0 { // not NaN
				refused += rate / 6
			}
		}
	}
	s.Refused = int(refused + 0.5)
	if d.deps.Files != nil { // with the service builds
		s.Files, s.Full = d.deps.Files.Health(), d.deps.Files.Room()
	}
}

// frame sets what every page of a screen shows: the links to pages, and what needs attention.
// Services that were never used have no link, unless an operator chose them.
func (d *Dashboard) frame(ctx context.Context, s *screen, open []string) {
	s.Now = d.situationNow(ctx)
	unused := map[string]bool{"throttle": !s.Now.Throttled, "deployments": !s.Now.Deployed}
	for _, p := range d.pages {
		if p.Key != "" && slices.Contains(open, p.Path) && (!unused[p.name] || len(d.services) > 0 || s.Now.Now.IsZero()) {
			s.Nav = append(s.Nav, p)
		}
	}
}
