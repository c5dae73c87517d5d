package serving

import (
	"time"

	"takt/actors/deployment"
	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/actors/queue"
	"takt/actors/telemetry"
	"takt/http"
	"takt/http/api"
	"takt/store"
)

var _ http.Queue = (*queue.Queue)(nil)

// publishTo forwards the bus's events to the HTTP server's streams.
func publishTo(server *http.Server) func(pubsub.Event) {
	return func(e pubsub.Event) {
		out := http.Event{Topic: e.Topic, Data: e.Data}
		switch data := e.Data.(type) {
		case string:
			if e.Topic != pubsub.JobAvailable {
				return
			}
			out.Data = api.JobAvailable{Platform: string(store.ClassOfEvent(data).Platform)}
		case queue.Assigned:
			out.BuildID = data.BuildID
		case store.BuildUpdate:
			out.BuildID = data.BuildID
		case deployment.Updated:
			server.DeploymentChanged(data.ID)
			return
		case queue.Updated, store.WorkerUpdate, telemetry.SupervisorEvent:
		default:
			return
		}
		server.Publish(out)
	}
}

// describe returns the live tree as the wire type.
func (c *controller) describe(all bool) api.TreeNode { return treeNode(c.tree.Snapshot(all)) }

func treeNode(n otp.Node) api.TreeNode {
	out := api.TreeNode{
		ID: n.ID, Path: n.Path, Type: n.Type.String(), Restart: n.Restart.String(), Status: string(n.Status), Detail: n.Detail,
		Restarts: n.Restarts, LastExit: n.LastExit, LastExitAt: api.NewMillis(n.LastExitAt),
		Mailbox: n.Mailbox, Messages: n.Messages, BusyMS: float64(n.Busy) / float64(time.Millisecond),
		ChildCount: n.ChildCount, Leaked: n.Leaked,
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
