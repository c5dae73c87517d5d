package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"takt/cmd/internal/load"
	"takt/cmd/internal/must"
)

const (
	openDashboards = 200
	watchedWorkers = 1000
	watchedBuilds  = 100
)

// dashboards takes G1: what pages that stay open cost takt and its database, beside the
// same work without them.
func (r *run) dashboards(ctx context.Context) {
	host := r.start(ctx, "dashboards")
	workers := host.pollers(ctx, watchedWorkers)
	builders, idle := workers[:watchedBuilds], workers[watchedBuilds:]
	host.refill(ctx, watchedBuilds)
	host.holding(ctx, builders)
	// Each second a tenth of the builds says something; idle workers poll every 10 s.
	polling(idle, true)
	var talkers []*repeater
	pages := []string{"/fleet", "/fleet?state=building", "/queue", "/builds", "/tree", "/heijunka", "/throttle", "/deployments"}
	for _, b := range builders {
		talkers = append(talkers, repeaters(1, b.logs(b.jobs[0], oneLine), 200)...)
		pages = append(pages, "/builds/"+b.jobs[0])
	}
	all := append(at(float64(len(idle))/10, shifts(idle)), at(watchedBuilds/10, clients(talkers))...)
	work := func() usage {
		host.renew(ctx, idle)
		before := host.usage()
		must.Get(load.Run(ctx, host.Address, 3*r.duration, all))
		return host.usage().minus(before)
	}
	r.say("G1: %d workers, %d running builds, no page open", watchedWorkers, watchedBuilds)
	alone := work()
	r.say("G1: the same with %d open pages", openDashboards)
	grown := host.growth(ctx)
	close := host.open(ctx, pages)
	var watched usage
	err := must.Try(func() { watched = work() })
	must.Do(errors.Join(err, close()))
	cost, part := watched.minus(alone), func(d time.Duration) float64 { return float64(d) / float64(3*r.duration) }
	f := figure{
		name: "G1", what: fmt.Sprintf("%d open pages of the dashboard, %d workers, %d running builds: part of a core", openDashboards, watchedWorkers, watchedBuilds),
		measured: fmt.Sprintf("takt %.1f %%, PostgreSQL %.1f %%", 100*part(cost.takt), 100*part(cost.postgres)),
	}
	r.add(f.below(part(cost.takt+cost.postgres), .1, "10 % of a core"))
	r.add(memory("G1", "growth of resident memory meanwhile", grown(), 64*mib))
}

// open keeps openDashboards pages open, in turn, as browsers do: loaded once, and then
// followed. close ends them and fails if one ended before or had no news.
func (c *controller) open(ctx context.Context, pages []string) (close func() error) {
	b := &load.Browser{Base: c.URL, Client: &http.Client{Transport: &http.Transport{MaxConnsPerHost: 2 * openDashboards}, CheckRedirect: load.NoRedirects}}
	must.Do(b.Login(ctx, c.APIKey))
	following, stop := context.WithCancelCause(ctx)
	var silent, ended atomic.Int64
	var followed sync.WaitGroup
	for i := range openDashboards {
		path := pages[i%len(pages)]
		if status := must.Get(b.Visit(ctx, path, "text/html", nil)); status != http.StatusOK {
			must.Do(fmt.Errorf("%s: status %d", path, status))
		}
		stream, err := b.Send(following, path, "text/event-stream", nil)
		must.Do(err)
		silent.Add(1)
		followed.Go(func() {
			defer stream.Body.Close()
			buf, heard := make([]byte, 32<<10), false
			for {
				n, err := stream.Body.Read(buf)
				if !heard && bytes.Contains(buf[:n], []byte("event: part")) {
					heard = true
					silent.Add(-1)
				}
				if err != nil {
					if following.Err() == nil {
						ended.Add(1)
					}
					return
				}
			}
		})
	}
	return func() error {
		stop(errors.New("measured"))
		followed.Wait()
		b.Client.CloseIdleConnections()
		if silent.Load()+ended.Load() > 0 {
			return fmt.Errorf("of %d open pages %d had no news and %d ended", openDashboards, silent.Load(), ended.Load())
		}
		return nil
	}
}
