package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"takt/cmd/internal/load"
)

const (
	openDashboards = 200
	watchedWorkers = 1000
	watchedBuilds  = 100
)

// dashboards takes G1: what pages that stay open cost takt and its database, beside the
// same work without them.
func (r *run) dashboards(ctx context.Context) error {
	host, err := r.start(ctx, "dashboards")
	if err != nil {
		return err
	}
	workers, err := host.pollers(ctx, watchedWorkers)
	if err != nil {
		return err
	}
	builders, idle := workers[:watchedBuilds], workers[watchedBuilds:]
	if err := host.refill(ctx, watchedBuilds); err != nil {
		return err
	}
	if err := host.holding(ctx, builders); err != nil {
		return err
	}
	// Each second a tenth of the builds says something; idle workers poll every 10 s.
	polling(idle, true)
	shifts := make([]*shift, connections)
	for i := range shifts {
		shifts[i] = &shift{pollers: idle[i*len(idle)/len(shifts) : (i+1)*len(idle)/len(shifts)]}
	}
	talkers, pages := make([]*repeater, len(builders)), []string{"/fleet", "/fleet?state=building", "/queue", "/builds", "/tree", "/heijunka", "/throttle", "/deployments"}
	for i, b := range builders {
		talkers[i] = &repeater{statuses: []int{200}, request: request(nil, "POST /api/builds/"+b.jobs[0]+"/logs", b.key,
			"X-Worker-Id: "+b.id+"\r\nContent-Type: application/json\r\n", `{"level":"info","message":"one more line"}`)}
		pages = append(pages, "/builds/"+b.jobs[0])
	}
	all := append(at(float64(len(idle))/10, clients(shifts)), at(watchedBuilds/10, clients(talkers))...)
	work := func() (u usage, err error) {
		if err := host.renew(ctx, idle); err != nil {
			return u, err
		}
		before, err := host.usage()
		if err != nil {
			return u, err
		}
		if _, err = load.Run(ctx, host.Address, 3*r.duration, all); err != nil {
			return u, err
		}
		after, err := host.usage()
		return after.minus(before), err
	}
	r.say("G1: %d workers, %d running builds, no page open", watchedWorkers, watchedBuilds)
	alone, err := work()
	if err != nil {
		return err
	}
	r.say("G1: the same with %d open pages", openDashboards)
	grown, err := host.growth()
	if err != nil {
		return err
	}
	close, err := host.open(ctx, pages)
	if err != nil {
		return err
	}
	watched, err := work()
	if err = errors.Join(err, close()); err != nil {
		return err
	}
	memoryUsed, err := grown()
	if err != nil {
		return err
	}
	cost := watched.minus(alone)
	core := float64(cost.takt+cost.postgres) / float64(3*r.duration)
	what := fmt.Sprintf("%d open pages of the dashboard, %d workers, %d running builds", openDashboards, watchedWorkers, watchedBuilds)
	f := figure{
		name: "G1", what: what + ": part of a core",
		measured: fmt.Sprintf("takt %.1f %%, PostgreSQL %.1f %%", 100*float64(cost.takt)/float64(3*r.duration), 100*float64(cost.postgres)/float64(3*r.duration)),
	}
	r.add(f.below(core, .1, "10 % of a core"))
	r.add(memory("G1", "growth of resident memory meanwhile", memoryUsed, 64*mib))
	return nil
}

// open keeps openDashboards pages open, in turn, as browsers do: loaded once, and then
// followed. close ends them and fails if one ended before or had no news.
func (c *controller) open(ctx context.Context, pages []string) (close func() error, err error) {
	client := &http.Client{
		Transport:     &http.Transport{MaxConnsPerHost: 2 * openDashboards},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	ask := func(method, path, accept, cookie, form string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, method, c.URL+path, strings.NewReader(form))
		if err != nil {
			return nil, err
		}
		req.Header = http.Header{"Accept": {accept}, "Cookie": {cookie}, "Content-Type": {"application/x-www-form-urlencoded"}, "Sec-Fetch-Site": {"same-origin"}}
		return client.Do(req)
	}
	reply, err := ask(http.MethodPost, "/login", "text/html", "", url.Values{"key": {c.APIKey}, "name": {"bench"}}.Encode())
	if err != nil {
		return nil, err
	}
	cookie, _, _ := strings.Cut(reply.Header.Get("Set-Cookie"), ";")
	if err := reply.Body.Close(); err != nil || cookie == "" {
		return nil, fmt.Errorf("logging in: %s: %w", reply.Status, err)
	}
	var streams []io.Closer
	var silent, ended atomic.Int64
	var closing atomic.Bool
	done := make(chan struct{}, openDashboards)
	for i := range openDashboards {
		path := pages[i%len(pages)]
		for _, accept := range []string{"text/html", "text/event-stream"} {
			if reply, err = ask(http.MethodGet, path, accept, cookie, ""); err != nil {
				return nil, err
			}
			if reply.StatusCode != http.StatusOK {
				return nil, fmt.Errorf("%s: %s", path, reply.Status)
			}
			if accept == "text/html" {
				_, err := io.Copy(io.Discard, reply.Body)
				if err = errors.Join(err, reply.Body.Close()); err != nil {
					return nil, err
				}
			}
		}
		streams = append(streams, reply.Body)
		silent.Add(1)
		go func(body io.Reader) {
			defer func() { done <- struct{}{} }()
			buf, heard := make([]byte, 32<<10), false
			for {
				n, err := body.Read(buf)
				if !heard && bytes.Contains(buf[:n], []byte("event: part")) {
					heard = true
					silent.Add(-1)
				}
				if err != nil {
					if !closing.Load() {
						ended.Add(1)
					}
					return
				}
			}
		}(reply.Body)
	}
	return func() (err error) {
		closing.Store(true)
		for _, s := range streams {
			_ = s.Close() // it is cut off
		}
		for range streams {
			<-done
		}
		client.CloseIdleConnections()
		if silent.Load()+ended.Load() > 0 {
			err = fmt.Errorf("of %d open pages %d had no news and %d ended", openDashboards, silent.Load(), ended.Load())
		}
		return err
	}, nil
}
