package dashboard

import (
	"cmp"
	"context"
	"time"

	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

// queueData is the data of the queue's page.
type queueData struct {
	All     forecast.Queue
	Room    store.QueueRoom
	Fleet   map[int32]forecast.Queue // 0 is All
	Waiting list[waitingRow]
	Running list[runningRow]
	Plots   []plot
}

type waitingRow struct {
	store.PendingBuild
	Why forecast.Reason
}

type runningRow struct {
	store.RunningBuild
	forecast.Run
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
	data.All, data.Fleet, data.Room = now.All(), now.Fleet, now.Room()
	data.Waiting = listOf(v, "after", edge.Each(waiting, func(b store.PendingBuild) waitingRow { return waitingRow{b, now.Why(b)} }), next)
	data.Running = listOf(v, "running", edge.Each(running, func(b store.RunningBuild) runningRow {
		return runningRow{b, forecast.Run{Elapsed: time.Since(b.StartedAt), Usual: now.Usual[b.Platform]}}
	}), earlier)
	return data, err
}

func (d *Dashboard) queuePlots(v *view) []plot {
	now := time.Now()
	d.deps.History.watched.Store(now.Unix())
	over, draw := d.plotters(v, now)
	var depths []line
	for i, name := range d.deps.History.lines() {
		depths = append(depths, over(name, figPending+figure(i)))
	}
	return []plot{
		draw("depth", "Waiting", "builds", "Bad when it grows for long: then workers are missing.", depths...),
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
	return cmp.Or(forecast.Span(u.Median), "–") + " (" + forecast.Span(u.Quarter) + " to " + forecast.Span(u.Ninth) + ")"
}
