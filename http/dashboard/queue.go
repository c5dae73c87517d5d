package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"takt/http/edge"
	"takt/store"
)

// queueData is the data of the queue's page.
type queueData struct {
	Fleet   []platformQueue
	Waiting list[waitingRow]
	Running list[runningRow]
	Plots   []plot
}

// platformQueue is a platform's part of the queue and of the fleet.
type platformQueue struct {
	store.FleetSummary
	Usual store.Durations
}

// Free returns how many slots have no build.
func (p platformQueue) Free() int { return max(p.Slots-p.Held, 0) }

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
	Usual store.Durations
}

// Elapsed returns how long the build has run.
func (r runningRow) Elapsed() time.Duration { return time.Since(r.StartedAt) }

// Percent returns the build's progress: the worker's figure, or an estimate from the
// usual time. It is -1 if neither is known.
func (r runningRow) Percent() int {
	switch {
	case r.Progress != nil:
		return *r.Progress
	case r.Usual.Median > 0:
		return min(int(100*r.Elapsed()/r.Usual.Median), 99)
	default:
		return -1
	}
}

// Late reports whether the build has run longer than nine of ten builds like it.
func (r runningRow) Late() bool { return r.Usual.Count >= 5 && r.Elapsed() > r.Usual.Ninth }

func (d *Dashboard) loadQueue(ctx context.Context, v *view) (any, error) {
	fleet, err := d.platforms(ctx)
	if err != nil {
		return nil, err
	}
	waiting, next, err := d.deps.Store.Waiting(ctx, v.rows("after"))
	if err != nil {
		return nil, err
	}
	running, earlier, err := d.deps.Store.Running(ctx, v.rows("running"))
	if err != nil {
		return nil, err
	}
	data := queueData{
		Waiting: listOf(v, "after", edge.Each(waiting, func(b store.PendingBuild) waitingRow { return waitingRow{b, whyWaiting(b, fleet[b.Platform])} }), next),
		Running: listOf(v, "running", edge.Each(running, func(b store.RunningBuild) runningRow { return runningRow{b, fleet[b.Platform].Usual} }), earlier),
		Plots:   d.queuePlots(v),
	}
	for _, p := range []store.Platform{store.IOS, store.Android} {
		if f := fleet[p]; f.Known > 0 || f.Pending > 0 {
			data.Fleet = append(data.Fleet, f)
		}
	}
	return data, nil
}

// platforms returns the slots and the pending builds of each platform.
func (d *Dashboard) platforms(ctx context.Context) (map[store.Platform]platformQueue, error) {
	fleet, err := d.fleet.Get(ctx, d.deps.Store.FleetSummary)
	if err != nil {
		return nil, err
	}
	usual, err := d.durations.Get(ctx, d.deps.Store.Durations)
	if err != nil {
		return nil, err
	}
	all := map[store.Platform]platformQueue{}
	for _, s := range fleet {
		all[s.Platform] = platformQueue{s, usual[s.Platform]}
	}
	return all, nil
}

// whyWaiting says why a build waits. p is the part of the fleet that could build it.
func whyWaiting(b store.PendingBuild, p platformQueue) why {
	number := fmt.Sprintf("number %d of %d for %s", b.Number, max(p.Pending, b.Number), p.Platform)
	switch free := p.Free(); {
	case p.Known == 0:
		return why{Kind: "worker", Text: "There is no worker for " + string(b.Platform) + "."}
	case p.Able == 0 && p.Draining+p.Critical+p.Quarantined > 0:
		return why{Kind: "paused", Text: fmt.Sprintf("All workers for %s that are online get no builds: %d draining, %d quarantined, %d critical.",
			p.Platform, p.Draining, p.Quarantined, p.Critical)}
	case p.Able == 0 && p.Silent > 0:
		return why{Kind: "worker", Text: fmt.Sprintf("No worker for %s polls: %d silent.", p.Platform, p.Silent)}
	case p.Able == 0:
		return why{Kind: "worker", Text: fmt.Sprintf("No worker for %s is online (%d known).", p.Platform, p.Known)}
	case b.Number <= free:
		return why{Kind: "next", Text: "A slot is free: the next poll of a worker gets it.", Start: "now"}
	default:
		return why{Kind: "busy", Text: fmt.Sprintf("Every slot is busy (%s, %s); it is %s.", plural(p.Slots, "slot"), plural(p.Able, "worker"), number), Start: estimate(b.Number-free, p)}
	}
}

// estimate says when the nth build without a free slot starts. It assumes that slots
// become free one after the other, the first of them soon.
func estimate(n int, p platformQueue) string {
	if p.Usual.Count == 0 || p.Slots == 0 {
		return ""
	}
	rounds := float64(n) / float64(p.Slots)
	soon := time.Duration(max(rounds-1, 0) * float64(p.Usual.Quarter))
	late := time.Duration((rounds + 0.5) * float64(p.Usual.Ninth))
	if soon < 10*time.Second {
		return "within " + rough(late)
	}
	return rough(soon) + " to " + rough(late)
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
