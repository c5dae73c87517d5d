package dashboard

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"takt/http"
	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// treeData is the data of the supervision tree's page.
type treeData struct {
	Root   treeNode
	Ailing []string
	// Suspended are those that go on by themselves when what Ailing lists does.
	Suspended int
	Events    []treeEvent
}

// treeNode is a node with the rights of the viewer.
type treeNode struct {
	api.TreeNode
	Admin bool
}

// Nodes returns the node's children.
func (n treeNode) Nodes() []treeNode {
	return edge.Each(n.Children, func(c api.TreeNode) treeNode { return treeNode{c, n.Admin} })
}

// Uptime returns how long the current incarnation has run.
func (n treeNode) Uptime() time.Duration { return time.Duration(n.UptimeMS) * time.Millisecond }

// Up reports whether there is an incarnation that has an uptime.
func (n treeNode) Up() bool { return n.Status == "running" || n.Status == "suspended" }

// Mark is the class of the node's badge: a supervisor is not well while what it supervises is not.
func (n treeNode) Mark() string {
	if n.Status == "running" && n.Below() != "" {
		return "degraded"
	}
	return n.Status
}

// Orders returns the actions that are possible now.
func (n treeNode) Orders() []string {
	switch {
	case !n.Admin || n.Restart == "temporary":
		return nil
	case n.Status == "terminated":
		return []string{"start"}
	default:
		return []string{"restart", "terminate"}
	}
}

// treeEvent is a supervision event.
type treeEvent struct {
	Event    string    `json:"event"`
	Path     string    `json:"path"`
	Reason   string    `json:"reason"`
	Detail   string    `json:"detail"`
	At       time.Time `json:"at"`
	Abnormal bool      `json:"abnormal"`
}

const treeEvents = 30

func (d *Dashboard) loadTree(_ context.Context, v *view) (any, error) {
	root := d.server.Tree(false)
	data := treeData{Root: treeNode{root, v.Admin}}
	var suspended []string
	for _, n := range nodes(&root, ails) {
		list := &data.Ailing
		if n.Status == "suspended" {
			list = &suspended
		}
		*list = append(*list, n.Path+" is "+n.Status)
	}
	if data.Suspended = len(suspended); data.Ailing == nil {
		data.Ailing, data.Suspended = suspended, 0
	}
	// Requests, and what starts as it should, would hide the other events.
	data.Events = edge.Each(d.server.LatestEvents("supervisor:event", treeEvents, func(v any) bool {
		e := eventOf(v)
		return e.Path != "" && !strings.Contains(e.Path, "/request_sup/") && (e.Event != "started" || e.Abnormal)
	}), eventOf)
	return data, nil
}

// eventOf returns the content of a supervision event.
func eventOf(v any) (e treeEvent) {
	if raw, err := json.Marshal(v); err != nil || json.Unmarshal(raw, &e) != nil {
		return treeEvent{}
	}
	return e
}

// orderData is the data of the page before an order.
type orderData struct {
	api.Plan
	Refused string
	Vital   bool
	Back    string
}

// loadOrder reads what an order would stop and start.
func (d *Dashboard) loadOrder(_ context.Context, v *view) (any, error) {
	action := v.Get("action")
	p, vital, err := http.PlanOrder(d.deps.Tree, action, store.Text(v.Get("path")))
	if store.CodeOf(err) == store.Conflict {
		return orderData{Plan: p, Refused: edge.FailureOf(err).Message}, nil
	}
	if err != nil {
		return nil, err
	}
	p.Requests = max(d.server.Running()-1, 0) // one is this page's
	return orderData{Plan: p, Vital: vital}, nil
}

// starting counts the processes that neither run nor were terminated.
func starting(root api.TreeNode) int {
	return len(nodes(&root, func(n *api.TreeNode) bool { return n.Status != "running" && n.Status != "terminated" }))
}

// ails reports whether a node does not run.
func ails(n *api.TreeNode) bool { return n.Status != "running" }

// nodes returns the nodes of n's tree that f selects.
func nodes(n *api.TreeNode, f func(*api.TreeNode) bool) (found []*api.TreeNode) {
	if f(n) {
		found = append(found, n)
	}
	for i := range n.Children {
		found = append(found, nodes(&n.Children[i], f)...)
	}
	return found
}
