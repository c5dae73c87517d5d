package dashboard

import (
	"context"
	"slices"

	"takt/http/api"
	"takt/http/attention"
	"takt/store"
)

// overviewData is the data of the overview.
type overviewData struct {
	*attention.Situation
	Builds bool // the service runs
	Queue  queueData
	Recent []store.Build
}

// loadOverview reads the overview. While the database is away, the data beside the error has
// the lists that were read last.
func (d *Dashboard) loadOverview(ctx context.Context, v *view) (any, error) {
	data := overviewData{Situation: d.situationNow(ctx), Builds: d.runs(api.ServiceBuilds)}
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

// situationNow returns the situation, which all pages share.
func (d *Dashboard) situationNow(ctx context.Context) *attention.Situation {
	s, err := d.deps.Attention.Now(ctx)
	if err != nil { // the request has ended
		return &attention.Situation{}
	}
	return s
}

// frame sets what every page of a screen shows: the links to pages, and what needs attention.
func (d *Dashboard) frame(ctx context.Context, s *screen, open []string) {
	s.Now = d.situationNow(ctx)
	for _, p := range d.pages {
		if p.Key != "" && slices.Contains(open, p.Path) && d.links(p, s.Now) {
			s.Nav = append(s.Nav, p)
		}
	}
}

// links reports whether a page that is open to the visitor has a link. Those of services that were
// never used have none, unless an operator chose them.
func (d *Dashboard) links(p *page, now *attention.Situation) bool {
	unused := p.name == "throttle" && !now.Throttled || p.name == "deployments" && !now.Deployed
	return !unused || d.chosen || now.Now.IsZero()
}
