package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	// outages is how often E4 takes the database away, each time a little longer, so that
	// it comes back at any moment of a back-off.
	outages = 6
	// askEvery is the time between two requests while the database is away.
	askEvery = 20 * time.Millisecond
	// restarters submit while parts are restarted.
	restarters = 8
)

// back takes E4: how long takt takes to use an external database again once that
// answers, while requests ask for it, and how long restarts under load take.
func (r *run) back(ctx context.Context) error {
	owner, err := r.start(ctx, "back-owner")
	if err != nil {
		return err
	}
	guest, err := r.start(ctx, "back", owner.Shared()...)
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range outages * r.rounds {
		r.say("E4: taking the database away, %d of %d", i+1, outages*r.rounds)
		d, err := r.outage(ctx, owner, guest, time.Duration(500+700*(i%outages))*time.Millisecond)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	for _, f := range []struct {
		what  string
		took  time.Duration
		limit time.Duration
	}{
		{"external database used again after it answers, median", median(took), 500 * time.Millisecond},
		{"the same, longest", slices.Max(took), 1500 * time.Millisecond},
	} {
		r.add(figure{name: "E4", what: f.what, measured: f.took.Round(time.Millisecond).String()}.below(f.took.Seconds(), f.limit.Seconds(), f.limit.String()))
	}
	return r.restarts(ctx, owner)
}

// outage takes owner's database away for at least d and returns how long guest takes to
// answer a request once the database answers.
func (r *run) outage(ctx context.Context, owner, guest *controller, d time.Duration) (time.Duration, error) {
	order := client.Order{Action: "terminate", Path: "database/postgres", Reason: "takt-bench", Force: true}
	if _, err := owner.Client.Operate(ctx, order); err != nil {
		return 0, err
	}
	used := make(chan time.Time, 1)
	limited, cancel := context.WithTimeout(ctx, d+time.Minute)
	defer cancel()
	go func() {
		defer close(used)
		for seen := false; limited.Err() == nil; rest(limited, askEvery) {
			_, err := guest.Client.List(limited, client.Filter{Limit: 1})
			if seen = seen || err != nil; seen && err == nil {
				used <- time.Now()
				return
			}
		}
	}()
	rest(ctx, d)
	started := make(chan error, 1)
	go func() {
		order.Action = "start"
		_, err := owner.Client.Operate(limited, order)
		started <- err
	}()
	var answers time.Time
	for answers.IsZero() && limited.Err() == nil {
		begun := time.Now()
		if _, err := owner.db.number(limited, "SELECT 1"); err == nil {
			answers = begun
		}
	}
	at, ok := <-used
	if err := <-started; err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("the database was not used again within %s", d+time.Minute)
	}
	return max(0, at.Sub(answers)), nil
}

// restarts adds how long restarts under load take.
func (r *run) restarts(ctx context.Context, c *controller) error {
	loading, stop := context.WithCancelCause(ctx)
	var load sync.WaitGroup
	for range restarters {
		load.Go(func() {
			for loading.Err() == nil {
				_, err := c.Client.Submit(loading, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("x"))})
				if err != nil {
					rest(loading, askEvery)
				}
			}
		})
	}
	defer load.Wait()
	defer stop(nil)
	for _, path := range []string{"throttle", "database", ""} {
		var took []time.Duration
		for i := range r.rounds {
			r.say("E4: restarting takt/%s under load, round %d of %d", path, i+1, r.rounds)
			begun, waiting := time.Now(), ""
			if _, err := c.Client.Operate(ctx, client.Order{Action: "restart", Path: "takt/" + path, Reason: "takt-bench", Timeout: time.Minute}); err != nil {
				return err
			}
			if err := c.Await(ctx, "all to run again", func() string { return waiting }, func(ctx context.Context) (bool, error) {
				root, err := c.Client.Tree(ctx, client.TreeOptions{})
				waiting = notRunning(&root)
				return err == nil && waiting == "" && root.UptimeMS < time.Since(begun).Milliseconds() == (path == ""), nil
			}); err != nil {
				return err
			}
			took = append(took, time.Since(begun))
		}
		const limit = 2 * time.Second
		longest := slices.Max(took)
		f := figure{name: "E4", what: "restart of takt/" + path + " under load, longest", measured: longest.Round(time.Millisecond).String()}
		r.add(f.below(longest.Seconds(), limit.Seconds(), limit.String()))
	}
	return nil
}

// notRunning says what of n and all below it does not run.
func notRunning(n *api.TreeNode) (all string) {
	for i := range n.Children {
		all += notRunning(&n.Children[i])
	}
	if n.Status != "running" {
		all += n.Path + " " + n.Status + " "
	}
	return all
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
