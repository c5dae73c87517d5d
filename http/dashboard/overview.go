package dashboard

import (
	"context"
	"slices"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// overviewData is the data of the overview.
type overviewData struct {
	*situation
	Builds  bool // the service runs
	Waiting []waitingRow
	Active  []runningRow
	Recent  []store.Build
}

// Online returns how many workers get builds, and Pending how many builds wait.
func (o overviewData) Online() int  { return o.Fleet[""].Able }
func (o overviewData) Pending() int { return o.Fleet[""].Pending }

// loadOverview reads the overview. While the database is away, the data beside the error has
// the lists that were read last.
func (d *Dashboard) loadOverview(ctx context.Context, v *view) (any, error) {
	data := overviewData{situation: d.situationNow(ctx), Builds: d.runs(api.ServiceBuilds)}
	err := d.readLists(ctx, &data)
	if was, _, _ := d.known.of(v.data()); err != nil && was != nil {
		last := was.(overviewData) //nolint:forcetypeassert // only this function makes it
		data.Waiting, data.Active, data.Recent = last.Waiting, last.Active, last.Recent
	}
	return data, err
}

func (d *Dashboard) readLists(ctx context.Context, data *overviewData) error {
	few := store.Page{Limit: 5}
	switch {
	case data.Away:
		return errAway
	case !data.Builds:
		return nil
	}
	waiting, _, err := d.deps.Store.Waiting(ctx, few)
	if err != nil {
		return err
	}
	running, _, err := d.deps.Store.Running(ctx, few)
	if err != nil {
		return err
	}
	data.Waiting = edge.Each(waiting, func(b store.PendingBuild) waitingRow { return waitingRow{b, whyWaiting(b, data.Fleet[b.Platform])} })
	data.Active = edge.Each(running, func(b store.RunningBuild) runningRow { return newRunning(b, data.Fleet) })
	data.Recent, _, err = d.deps.Builds.List(ctx, store.BuildFilter{States: []store.BuildState{store.Completed, store.Failed, store.Cancelled}}, few)
	return err
}

// situationAge is how long a situation is shown, and how long reading it may take.
const situationAge = 2 * time.Second

// situationNow returns the situation. All pages share it, so reading it does not end with the
// request that began it.
func (d *Dashboard) situationNow(ctx context.Context) *situation {
	s, err := d.situation.Get(ctx, func(ctx context.Context) (*situation, error) {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), situationAge, errSlowPage)
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
	usual, err := d.durations.Get(ctx, d.deps.Store.Durations)
	if err != nil {
		return err
	}
	fleet, err := d.deps.Store.FleetSummary(ctx)
	if err != nil {
		return err
	}
	asked := time.Now()
	if s.Figures, err = d.deps.Store.Figures(ctx); err != nil {
		return err
	}
	s.Ahead, s.Fleet = s.Now.Sub(asked)-time.Since(asked)/2, map[store.Platform]platformQueue{}
	for _, f := range fleet {
		q := platformQueue{FleetSummary: f, Usual: usual[f.Platform]}
		for _, b := range s.Running {
			if f.Platform == "" || b.Able && (len(b.Platforms) == 0 || slices.Contains(b.Platforms, f.Platform)) {
				q.Busy = append(q.Busy, run{time.Duration(b.Seconds * float64(time.Second)), usual[b.Platform]})
				q.Shared = q.Shared || len(b.Platforms) != 1
			}
		}
		s.Fleet[f.Platform] = q
	}
	s.Workers, _, s.States, err = d.deps.Store.Fleet(ctx, store.WorkerFilter{Sort: "state", Present: true}, store.Page{Limit: pageRows})
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
	if d.runs(api.ServiceBuilds) {
		s.Files, s.Full = d.deps.Files.Health(), d.deps.Files.Room()
	}
}

// navItem is a link of the navigation.
type navItem struct {
	*page
	navCount
}

// navCount is how many things on a page need attention, and what they are; 0 is not shown.
type navCount struct {
	Count   int
	Counted string
}

// navigation returns the links for a visitor, and how many problems there are. Services that
// were never used have none, unless an operator chose them.
func (d *Dashboard) navigation(ctx context.Context, admin bool) (items []navItem, problems int) {
	s := d.situationNow(ctx)
	unused := map[string]bool{"throttle": !s.Throttled, "deployments": !s.Deployed}
	troubled := 0
	for _, state := range store.WorkerStates()[:troubles] {
		troubled += s.States[state]
	}
	counts := map[string]navCount{
		"fleet": {troubled, "with a problem"}, "queue": {s.Fleet[""].Pending, "waiting"}, "builds": {s.Failed, "failed in the last hour"}, "tree": {len(s.Down), "not running"},
	}
	for _, p := range d.pages {
		if p.Key != "" && (admin || !p.Operators()) && (!unused[p.name] || len(d.services) > 0 || s.Now.IsZero()) {
			items = append(items, navItem{p, counts[p.name]})
		}
	}
	return items, len(s.Problems())
}
