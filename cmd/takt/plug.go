package main

import (
	"context"
	"time"

	"takt/actors/build"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/telemetry"
	"takt/actors/throttle"
	"takt/http"
	"takt/http/api"
	"takt/store"
	"takt/store/postgres"
)

// polls makes the queue actor serve the HTTP server's polls.
type polls struct {
	queue *build.Queue
	limit int
	// count counts pending builds per platform, each up to limit.
	count func(ctx context.Context, limit int) (map[store.Platform]int, error)
}

var _ http.Queue = polls{}

// Arrive implements http.Queue.
func (p polls) Arrive(ctx context.Context, r http.PollRequest, wait time.Duration) (http.PollReply, http.PollTicket, error) {
	reply, ticket, err := p.queue.Arrive(ctx, build.PollRequest{
		Token: r.Token, WorkerID: r.WorkerID, Active: r.Active, Reconcile: r.Reconcile,
	}, wait)
	if err != nil || ticket == nil {
		return pollReply(reply), nil, err
	}
	return http.PollReply{}, parked{ticket}, nil
}

// Enqueued implements http.Queue.
func (p polls) Enqueued(platform store.Platform, cache string) { p.queue.Enqueued(platform, cache) }

// Requeued implements http.Queue.
func (p polls) Requeued(refs []store.BuildRef) { p.queue.Requeued(refs) }

// Freed implements http.Queue.
func (p polls) Freed(workerID string) { p.queue.Freed(workerID) }

// Warm implements http.Queue.
func (p polls) Warm(workerID, cache string) { p.queue.Warm(workerID, cache) }

// Full implements http.Queue.
func (p polls) Full(ctx context.Context) bool {
	if p.queue.Depth() <= p.limit {
		return false
	}
	// The hint may be old where builds were cancelled: nobody is refused on it
	// alone.
	pending, err := p.count(ctx, p.limit+1)
	if err != nil {
		return false
	}
	total := 0
	for _, n := range pending {
		total += n
	}
	return total > p.limit
}

func pollReply(r build.Reply) http.PollReply {
	return http.PollReply{Job: r.Job, Token: r.Token, QueueSize: r.QueueSize}
}

type parked struct{ ticket *build.Ticket }

// Wait implements http.PollTicket.
func (p parked) Wait(ctx context.Context) (http.PollReply, error) {
	reply, err := p.ticket.Wait(ctx)
	return pollReply(reply), err
}

// announcer puts what the HTTP server has changed on the bus.
type announcer struct{ bus pubsub.Bus }

var _ http.Announcer = announcer{}

// BuildUpdated implements http.Announcer.
func (a announcer) BuildUpdated(u store.BuildUpdate) { a.bus.Publish(pubsub.BuildUpdated, u) }

// WorkerUpdated implements http.Announcer.
func (a announcer) WorkerUpdated(u store.WorkerUpdate) { a.bus.Publish(pubsub.WorkerUpdated, u) }

// hear gives the bus's events to the HTTP server's streams. A build that became
// available is told twice, here and through PostgreSQL, which every controller
// hears; the latter counts.
func hear(server *http.Server) func(pubsub.Event) {
	return func(e pubsub.Event) {
		out := http.Event{Topic: e.Topic, Data: e.Data}
		switch data := e.Data.(type) {
		case string:
			if e.Topic != pubsub.JobAvailable || !e.Remote {
				return
			}
			out.Data = api.JobAvailable{Platform: data}
		case build.Assigned:
			out.BuildID = data.BuildID
		case store.BuildUpdate:
			out.BuildID = data.BuildID
		case build.QueueUpdated, store.WorkerUpdate, telemetry.SupervisorEvent:
		default:
			return
		}
		server.Publish(out)
	}
}

// describe shows the live tree in the words of the wire.
func (c *controller) describe(all bool) api.TreeNode { return treeNode(c.tree.Snapshot(all)) }

func treeNode(n otp.Node) api.TreeNode {
	out := api.TreeNode{
		ID: n.ID, Path: n.Path, Type: n.Type.String(), Restart: n.Restart.String(), Status: string(n.Status), Detail: n.Detail,
		Restarts: n.Restarts, LastExit: n.LastExit, LastExitAt: api.NewMillis(n.LastExitAt),
		Mailbox: n.Mailbox, ChildCount: n.ChildCount, Leaked: n.Leaked,
	}
	if n.Type == otp.Supervisor {
		out.Strategy = n.Strategy.String()
	}
	if !n.StartedAt.IsZero() {
		out.UptimeMS = time.Since(n.StartedAt).Milliseconds()
	}
	for _, child := range n.Children {
		out.Children = append(out.Children, treeNode(child))
	}
	return out
}

// openThrottle returns the throttle's store, and what its actors work with.
func (c *controller) openThrottle(db *postgres.DB) (*postgres.Throttle, throttle.Deps, error) {
	deps, err := c.cfg.throttleDeps()
	if err != nil {
		return nil, deps, err
	}
	kept, err := postgres.NewThrottle(db)
	deps.Store = kept
	return kept, deps, err
}
