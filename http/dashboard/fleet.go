package dashboard

import (
	"cmp"
	"context"
	"html/template"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/store"
)

// fleetData is the data of the fleet's page.
type fleetData struct {
	list[fleetRow]
	States map[string]int
	Total  int
	Wrong  string // what is wrong with the filter; that part of it is ignored
	// Platforms are those that the filter offers.
	Platforms []string
}

// fleetRow is a worker in the list.
type fleetRow struct {
	store.WorkerDetail
	CPU, Memory template.HTML
}

// Current reports whether the telemetry is recent.
func (r fleetRow) Current() bool {
	return r.Telemetry != nil && r.Held > 0 && time.Since(r.Telemetry.At) < 2*time.Minute
}

// Ended returns how many builds the worker ended.
func (r fleetRow) Ended() int { return r.Completed + r.Failed }

// Success returns the share of its builds that completed; -1 if it ended none.
func (r fleetRow) Success() float64 {
	if r.Ended() == 0 {
		return -1
	}
	return float64(r.Completed) / float64(r.Ended())
}

var (
	fleetSorts  = []string{"state", "name", "used", "success", "seen"}
	fleetStates = store.WorkerStates()
)

// Sorts and StateNames are the options of the page's filter.
func (fleetData) Sorts() []string      { return fleetSorts }
func (fleetData) StateNames() []string { return fleetStates }

// oneOf returns a parameter of a filter, if it is one of values. Otherwise it ignores it and
// sets wrong.
func oneOf(v *view, name string, wrong *string, values ...string) string {
	value := v.Get(name)
	if value != "" && !slices.Contains(values, value) {
		*wrong = "Unknown " + name + ": " + value + ". Use one of: " + strings.Join(values, ", ") + "."
		return ""
	}
	return value
}

func (d *Dashboard) loadFleet(ctx context.Context, v *view) (any, error) {
	wrong := ""
	f := store.WorkerFilter{
		Name: strings.TrimSpace(v.Get("q")), State: oneOf(v, "state", &wrong, fleetStates...), Platform: store.Platform(oneOf(v, "platform", &wrong, d.platforms...)),
		Sort: cmp.Or(oneOf(v, "sort", &wrong, fleetSorts...), "state"),
	}
	f.Present = f.State != store.WorkerLeft
	rows, next, states, err := d.deps.Store.Fleet(ctx, f, v.rows("after"))
	if err != nil {
		return nil, err
	}
	at := time.Now()
	data := fleetData{States: states, Wrong: wrong, Platforms: d.platforms, list: listOf(v, "after", edge.Each(rows, func(r store.WorkerDetail) fleetRow {
		row := fleetRow{WorkerDetail: r}
		if points := d.deps.History.machineBetween(r.ID, at.Add(-machineLife), at); len(points) > 1 {
			row.CPU = spark("processor", edge.Each(points, func(p machinePoint) float32 { return p.v[0] }))
			row.Memory = spark("memory", edge.Each(points, func(p machinePoint) float32 { return p.v[1] }))
		}
		return row
	}), next)}
	for _, n := range states {
		data.Total += n
	}
	return data, nil
}

// workerData is the data of a worker's page.
type workerData struct {
	fleetRow
	Plots []plot
}

func (d *Dashboard) loadWorker(ctx context.Context, v *view) (any, error) {
	if !store.ValidID(v.id) {
		return nil, notFound("Worker")
	}
	row, err := d.deps.Workers.Show(ctx, v.id)
	now := time.Now()
	return workerData{fleetRow: fleetRow{WorkerDetail: row}, Plots: d.machinePlots(v.id, now.Add(-machineLife), now)}, err
}

// machinePlots draws the telemetry of a worker's machine between from and to.
func (d *Dashboard) machinePlots(worker string, from, to time.Time) (plots []plot) {
	points := d.deps.History.machineBetween(worker, from, to)
	if len(points) < 2 {
		return nil
	}
	// Telemetry arrives at irregular times, so the plot uses fixed steps.
	steps := min(int(to.Sub(from)/time.Second)+1, 120)
	step := max(to.Sub(from)/time.Duration(steps), 1)
	for n, f := range [...]struct{ id, name, unit string }{{"cpu", "Processor, of one core", "%"}, {"mem", "Memory", "MB"}, {"disk", "Disk", "%"}} {
		values := slices.Repeat([]float32{float32(math.NaN())}, steps)
		last := -1
		for _, p := range points {
			i := min(max(int(time.Unix(int64(p.at), 0).Sub(from)/step), 0), steps-1)
			if pause := i - last; last >= 0 && (pause <= steps/4 || step*time.Duration(pause) <= time.Minute) {
				for j := last + 1; j < i; j++ { // the last value held until then
					values[j] = values[last]
				}
			}
			values[i], last = p.v[n], i
		}
		plots = append(plots, newPlot("machine-"+f.id, f.name, f.unit, "", to, to.Sub(from), line{Name: f.name, Values: values}))
	}
	return plots
}

// search handles GET /search. An exact match leads to its page; otherwise a list is
// shown.
func (d *Dashboard) search(ctx context.Context, c echo.Context) (any, error) {
	q := store.Text(strings.TrimSpace(c.QueryParam("q")))
	to := ""
	switch {
	case q == "":
		to = d.front
	case strings.HasPrefix(q, "queue:") && d.deps.ThrottleStore != nil:
		to = "/throttle?q=" + url.QueryEscape(q)
	case store.ValidID(q):
		var err error
		if to, err = d.pageOf(ctx, q); err != nil {
			return nil, err
		}
	}
	if to != "" {
		return nil, c.Redirect(303, to)
	}
	var found []store.Named
	if d.deps.Workers != nil {
		var err error
		if found, err = d.deps.Store.NamedWorkers(ctx, q, 20); err != nil {
			return nil, err
		}
	}
	if len(found) == 1 || len(found) > 1 && strings.EqualFold(found[0].Name, q) && !strings.EqualFold(found[1].Name, q) {
		return nil, c.Redirect(303, "/fleet/"+found[0].ID)
	}
	return d.render(ctx, c, 200, "search", &screen{Title: "Search", Page: struct {
		Q     string
		Found []store.Named
	}{q, found}})
}

// pageOf returns the path of what has this id, "" if nothing has it.
func (d *Dashboard) pageOf(ctx context.Context, id string) (path string, err error) {
	if d.deps.Workers != nil { // the service builds
		if _, err = d.deps.Builds.Find(ctx, id); err == nil {
			return "/builds/" + id, nil
		}
		if _, err = d.deps.Workers.Show(ctx, id); err == nil {
			return "/fleet/" + id, nil
		}
	}
	if d.deps.DeploymentStore != nil {
		if _, err = d.deps.DeploymentStore.Find(ctx, id); err == nil {
			return "/deployments/" + id, nil
		}
	}
	if !store.IsUnavailable(err) {
		err = nil
	}
	return "", err
}
