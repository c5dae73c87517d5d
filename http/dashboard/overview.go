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
// Services that were never used have no link, unless an operator chose them.
func (d *Dashboard) frame(ctx context.Context, s *screen, open []string) {
	s.Now = d.situationNow(ctx)
	unused := map[string]bool{"throttle": !s.Now.Throttled, "deployments": !s.Now.Deployed}
	for _, p := range d.pages {
		if p.Key != "" && slices.Contains(open, p.Path) && (!unused[p.name] || d.chosen || s.Now.Now.IsZero()) {
			s.Nav = append(s.Nav, p)
		}
	}
}
