package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
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
func (r *run) back(ctx context.Context) {
	owner := r.start(ctx, "back-owner")
	guest := r.start(ctx, "back", owner.Shared()...)
	took := make([]time.Duration, outages*r.rounds)
	for i := range took {
		r.say("E4: taking the database away, %d of %d", i+1, len(took))
		took[i] = outage(ctx, owner, guest, time.Duration(500+700*(i%outages))*time.Millisecond)
	}
	r.add(duration("E4", "external database used again after it answers, median", median(took), 500*time.Millisecond))
	r.add(duration("E4", "the same, longest", slices.Max(took), 1500*time.Millisecond))
	r.restarts(ctx, owner)
}

// outage takes owner's database away for at least d and returns how long guest takes to
// answer a request once the database answers.
func outage(ctx context.Context, owner, guest *controller, d time.Duration) time.Duration {
	order := client.Order{Action: "terminate", Path: "database/postgres", Reason: "takt-bench", Force: true}
	must.Get(owner.Client.Operate(ctx, order))
	limited, cancel := context.WithTimeoutCause(ctx, d+time.Minute, fmt.Errorf("the database was not used again within %s", d+time.Minute))
	defer cancel()
	var used, answers time.Time
	using := must.Beside(func() {
		for seen := false; used.IsZero(); process.Pause(limited, askEvery) {
			must.Do(context.Cause(limited))
			_, err := guest.Client.List(limited, client.Filter{Limit: 1})
			if seen = seen || err != nil; seen && err == nil {
				used = time.Now()
			}
		}
	})
	process.Pause(ctx, d)
	starting := must.Beside(func() {
		order.Action = "start"
		must.Get(owner.Client.Operate(limited, order))
	})
	for answers.IsZero() && limited.Err() == nil {
		begun := time.Now()
		if must.Try(func() { owner.db.number(limited, "SELECT 1") }) == nil {
			answers = begun
		}
	}
	must.Do(errors.Join(using(), starting()))
	return max(0, used.Sub(answers))
}

// restarts adds how long restarts under load take.
func (r *run) restarts(ctx context.Context, c *controller) {
	loading, stop := context.WithCancelCause(ctx)
	var submitting sync.WaitGroup
	for range restarters {
		submitting.Go(func() {
			for loading.Err() == nil {
				_, err := c.Client.Submit(loading, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("x"))})
				if err != nil {
					process.Pause(loading, askEvery)
				}
			}
		})
	}
	defer submitting.Wait()
	defer stop(nil)
	// The last outage must be over, or the first restart would be charged with its end.
	settled(ctx, c, func(*api.TreeNode) bool { return true })
	for _, path := range []string{"throttle", "database", ""} {
		took := make([]time.Duration, r.rounds)
		for i := range took {
			r.say("E4: restarting takt/%s under load, round %d of %d", path, i+1, r.rounds)
			begun := time.Now()
			must.Get(c.Client.Operate(ctx, client.Order{Action: "restart", Path: "takt/" + path, Reason: "takt-bench", Timeout: time.Minute}))
			settled(ctx, c, func(root *api.TreeNode) bool { return root.UptimeMS < time.Since(begun).Milliseconds() == (path == "") })
			took[i] = time.Since(begun)
		}
		r.add(duration("E4", "restart of takt/"+path+" under load, longest", slices.Max(took), 2*time.Second))
	}
}

// settled waits until all of c's tree runs, and ok holds for its root.
func settled(ctx context.Context, c *controller, ok func(root *api.TreeNode) bool) {
	waiting := ""
	must.Do(c.Await(ctx, "all to run", func() string { return waiting }, func(ctx context.Context) (bool, error) {
		root, err := c.Client.Tree(ctx, client.TreeOptions{})
		waiting = notRunning(&root)
		return err == nil && waiting == "" && ok(&root), nil
	}))
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
