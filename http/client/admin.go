package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"takt/http/api"
)

// Metrics returns the controller's figures in Prometheus' text format. Safe to
// repeat.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	cl := of(api.ShowMetrics, api.None{})
	cl.header.Set("Accept", "text/plain")
	return ask[string](ctx, c, cl)
}

// TreeOptions selects which part of the tree to show.
type TreeOptions struct {
	// Path is a node's path from the root, ids joined by "/"; "" is the root.
	Path string
	// All lists the children of dynamic supervisors too.
	All bool
}

// Tree returns the supervision tree. Safe to repeat.
func (c *Client) Tree(ctx context.Context, o TreeOptions) (api.TreeNode, error) {
	in := api.ShowTreeIn{}
	if o.All {
		in.Children = "all"
	}
	if o.Path == "" {
		return Call(ctx, c, api.ShowTree, in)
	}
	return Call(ctx, c, api.ShowNode, api.ShowNodeIn{Path: o.Path, ShowTreeIn: in})
}

// Order is an operator's order to the supervision tree.
type Order struct {
	// Action is restart, terminate or start.
	Action string
	// Path is a node's path; "" is the root.
	Path string
	// Reason is required and goes into the audit.
	Reason string
	// Force terminates even a node that all others depend on.
	Force bool
	// Timeout is how long the controller waits until all is well. 0 means its
	// default, 10 s. The maximum is 60 s.
	Timeout time.Duration
}

func (o Order) call(dry bool) call {
	in := api.OrderNodeIn{Path: o.Path, Force: o.Force, DryRun: dry, Body: api.Reason{Reason: o.Reason}}
	if o.Timeout > 0 {
		in.Timeout = strconv.FormatFloat(o.Timeout.Seconds(), 'f', -1, 64)
	}
	e := api.RestartNode
	switch o.Action {
	case "terminate":
		e = api.TerminateNode
	case "start":
		e = api.StartNode
	}
	cl := of(e, in)
	cl.extra = o.Timeout
	return cl
}

// Ordered is the result of an order. Exactly one of the two fields is set.
type Ordered struct {
	// Node is the node's state after the order.
	Node *api.TreeNode
	// Plan is what the order will do. It is set when the order stops the HTTP server,
	// because the reply then comes first.
	Plan *api.Plan
}

// Operate gives an order and waits until it has run and all is well. Not safe to
// repeat blindly: each repeat of a restart restarts again.
func (c *Client) Operate(ctx context.Context, o Order) (Ordered, error) {
	cl := o.call(false)
	raw, err := ask[json.RawMessage](ctx, c, cl)
	if err != nil {
		return Ordered{}, err
	}
	// A plan has an action, a node has none.
	var plan api.Plan
	if err := json.Unmarshal(raw, &plan); err == nil && plan.Action != "" {
		return Ordered{Plan: &plan}, nil
	}
	var node api.TreeNode
	if err := json.Unmarshal(raw, &node); err != nil {
		return Ordered{}, fmt.Errorf("%s: unexpected reply: %w", cl, err)
	}
	return Ordered{Node: &node}, nil
}

// Plan returns what an order would do and changes nothing. Safe to repeat.
func (c *Client) Plan(ctx context.Context, o Order) (api.Plan, error) {
	return ask[api.Plan](ctx, c, o.call(true))
}

// Audit returns what operators did, newest first; limit 0 means all. Safe to repeat.
func (c *Client) Audit(ctx context.Context, limit int) (api.Audit, error) {
	entries, err := pages(ctx, c, api.ShowAudit, limit, 1000, func(limit int, from api.Continue) api.ShowAuditIn {
		return api.ShowAuditIn{Limit: limit, Continue: from}
	}, func(out api.Audit) []api.AuditEntry { return out.Entries })
	return api.Audit{Entries: entries}, err
}

// ProfileOptions selects a profile.
type ProfileOptions struct {
	// Name is profile (of the processor), trace, or a profile of Go such as heap.
	Name string
	// Record is how long profile and trace record, in whole seconds up to 60. 0 means
	// the controller's default, 10 s.
	Record time.Duration
	// Text is 1 for text and 2 for the stack of each goroutine.
	Text int
}

// Profile takes a profile of the controller's process. The controller takes one at a
// time. Error: Conflict. Safe to repeat.
func (c *Client) Profile(ctx context.Context, o ProfileOptions) (string, error) {
	cl := of(api.TakeProfile, api.TakeProfileIn{Name: o.Name, Seconds: int(o.Record / time.Second), Debug: o.Text})
	cl.extra = o.Record
	return ask[string](ctx, c, cl)
}
