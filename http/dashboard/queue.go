package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"takt/http/edge"
	"takt/store"
)

// queueData is the data of the queue's page.
type queueData struct {
	All     platformQueue
	Fleet   map[store.Platform]platformQueue // "" is All
	Waiting list[waitingRow]
	Running list[runningRow]
	Plots   []plot
}

// platformQueue is a platform's part of the queue and of the fleet.
type platformQueue struct {
	store.FleetSummary
	Usual store.Durations
	// Busy are the builds whose slots are used for the platform next; there may be more. Late
	// counts those that run longer than nine of ten.
	Busy   []run
	Late   int
	Shared bool // a worker takes other platforms, too
}

// run is how long a build has run, and how long builds like it take.
type run struct {
	Elapsed time.Duration
	Usual   store.Durations
}

// Late reports whether the build has run longer than nine of ten builds like it.
func (r run) Late() bool { return r.Usual.Count >= 5 && r.Elapsed > r.Usual.Ninth }

// Unpolled returns how many slots have no build and a worker that does not poll now.
func (p platformQueue) Unpolled() int { return max(p.Slots-p.Held-p.Free, 0) }

type waitingRow struct {
	store.PendingBuild
	Why why
}

// why says why a build waits, and when it may start.
type why struct {
	// Kind is worker (there is none), paused (none gets builds), busy or next.
	Kind, Text, Start string
}

type runningRow struct {
	store.RunningBuild
	run
}

// Percent returns the build's progress: the worker's figure, or an estimate from the
// usual time. It is -1 if neither is known, or the usual time is over.
func (r runningRow) Percent() int {
	switch {
	case r.Progress != nil:
		return *r.Progress
	case r.Elapsed < r.Usual.Median:
		return int(100 * r.Elapsed / r.Usual.Median)
	default:
		return -1
	}
}

// Over reports whether the build has run longer than half of those like it.
func (r runningRow) Over() bool { return r.Usual.Median > 0 && r.Elapsed >= r.Usual.Median }

func (d *Dashboard) loadQueue(ctx context.Context, v *view) (any, error) {
	data, err := d.readQueue(ctx, v, v.rows("after"), v.rows("running"))
	data.Plots = d.queuePlots(v)
	return data, err
}

// readQueue reads what waits and what runs.
func (d *Dashboard) readQueue(ctx context.Context, v *view, waits, runs store.Page) (data queueData, err error) {
	now := d.situationNow(ctx)
	if now.Away {
		return data, errAway
	}
	waiting, next, err := d.deps.Store.Waiting(ctx, waits)
	if err != nil {
		return data, err
	}
	running, earlier, err := d.deps.Store.Running(ctx, runs)
	data.All, data.Fleet = now.All(), now.Fleet
	data.Waiting = listOf(v, "after", edge.Each(waiting, func(b store.PendingBuild) waitingRow { return waitingRow{b, whyWaiting(b, now.Fleet[b.Platform])} }), next)
	data.Running = listOf(v, "running", edge.Each(running, func(b store.RunningBuild) runningRow {
		return runningRow{b, run{time.Since(b.StartedAt), now.Fleet[b.Platform].Usual}}
	}), earlier)
	return data, err
}

// unable says why no worker for the platform gets builds.
func unable(p platformQueue) string {
	of := "worker"
	if p.Platform != "" {
		of += " for " + string(p.Platform)
	}
	var paused []string
	for _, c := range [...]struct {
		n     int
		state string
	}{{p.Draining, "draining"}, {p.Quarantined, "quarantined"}, {p.Critical, "critical"}, {p.Silent, "silent"}} {
		if c.n > 0 {
			paused = append(paused, strconv.Itoa(c.n)+" "+c.state)
		}
	}
	switch {
	case p.Known == 0:
		return "There is no " + of + "."
	case paused != nil:
		return "No " + of + " gets builds: " + strings.Join(paused, ", ") + "."
	default:
		return "No " + of + " is online (" + strconv.Itoa(p.Known) + " known)."
	}
}

// whyWaiting says why a build waits. p is the part of the fleet that could build it.
func whyWaiting(b store.PendingBuild, p platformQueue) why {
	switch number := max(b.Number, 1); {
	case p.Able == 0 && p.Draining+p.Critical+p.Quarantined > 0:
		return why{Kind: "paused", Text: unable(p)}
	case p.Able == 0:
		return why{Kind: "worker", Text: unable(p)}
	case number <= p.Free:
		return why{Kind: "next", Text: "A slot is free: the next poll of a worker gets it.", Start: "any moment"}
	case number <= p.Slots-p.Held:
		return why{Kind: "busy", Text: "A slot is free, but its worker does not poll now."}
	default:
		busy := "Every slot is busy"
		if p.Free > 0 {
			busy = "The free slots go to builds before it"
		}
		return why{
			Kind:  "busy",
			Text:  fmt.Sprintf(busy+" (%s, %s); number %d of %d for %s.", plural(p.Slots, "slot"), plural(p.Able, "worker"), number, max(p.Pending, number), p.Platform),
			Start: estimate(number, max(b.Place, number), p),
		}
	}
}

// estimate says when the nth build for a platform starts, or the latest-th if its workers take
// other platforms, too. It is made from what is left of the builds that run.
func estimate(n, latest int, p platformQueue) string {
	switch {
	case p.Usual.Count == 0 || len(p.Busy) == 0:
		return ""
	case !p.Shared:
		latest = n
	}
	soon, late := make([]time.Duration, p.Free), make([]time.Duration, p.Free) // until each slot becomes free
	for _, r := range p.Busy {
		soon = append(soon, max(r.Usual.Quarter-r.Elapsed, 0))
		if r.Elapsed < r.Usual.Ninth {
			late = append(late, r.Usual.Ninth-r.Elapsed)
		}
	}
	if len(late) == 0 {
		return "unknown: " + counted(len(p.Busy), "build runs", "builds run") + " much longer than usual"
	}
	// Of very many builds that run, Busy has a part.
	scale := func(n int) int { return max(1, n*len(p.Busy)/max(p.Held, len(p.Busy))) }
	from, to := nth(scale(n), soon, p.Usual.Quarter), nth(scale(latest), late, p.Usual.Ninth)
	if from < 10*time.Second {
		return "within " + rough(to)
	}
	return rough(from) + " to " + rough(max(from, to))
}

// nth returns when the nth build gets a slot, if each slot becomes free after a time of free,
// and again each time that a build took.
func nth(n int, free []time.Duration, took time.Duration) time.Duration {
	took = max(took, time.Millisecond)
	last := slices.Max(free) + time.Duration(n)*took
	return time.Duration(sort.Search(int(last), func(t int) bool {
		started := 0
		for _, f := range free {
			if after := time.Duration(t) - f; after >= 0 {
				started += 1 + int(after/took)
			}
		}
		return started >= n
	}))
}

func (d *Dashboard) queuePlots(v *view) []plot {
	now, p := time.Now(), v.period()
	d.deps.History.watched.Store(now.Unix())
	over := func(name string, f figure) line { return line{Name: name, Values: d.deps.History.over(f, p, now)} }
	draw := func(id, title, unit, hint string, lines ...line) plot {
		return newPlot(id, title, unit, hint, now, periods[p].length, lines...)
	}
	return []plot{
		draw("depth", "Waiting", "builds", "Bad when it grows for long: then workers are missing.", over("iOS", figPendingIOS), over("Android", figPendingAndroid)),
		draw("flow", "Arrivals and starts", "builds a minute", "Good while as many start as arrive.", over("arrived", figArrived), over("started", figStarted)),
		draw("running", "Running", "builds", "At most the slots of all workers.", over("running", figRunning)),
		draw("waited", "Time waited by those that started", "s", "Lower is better.", over("waited", figWaited)),
	}
}

// usualText describes how long builds usually take.
func usualText(u store.Durations) string {
	if u.Count == 0 {
		return "not known: none completed within a day"
	}
	return cmp.Or(span(u.Median), "–") + " (" + span(u.Quarter) + " to " + span(u.Ninth) + ")"
}
