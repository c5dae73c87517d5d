package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"takt/http/api"
)

// Order is an operator's order to the supervision tree.
type Order struct {
	// Action is restart, terminate or start.
	Action string
	// Path is a node's path; "" is the root.
	Path string
	// Reason goes into the audit. Required.
	Reason string
	// Force terminates even what all depends on.
	Force bool
	// Timeout is how long the controller waits until all is well. 0 means its
	// default, 10 s; at most 60 s.
	Timeout time.Duration
}

func (o Order) call(query url.Values) call {
	path := "/admin/tree"
	if o.Path != "" {
		path += "/" + o.Path
	}
	if o.Force {
		query.Set("force", "1")
	}
	if o.Timeout > 0 {
		query.Set("timeout", strconv.FormatFloat(o.Timeout.Seconds(), 'f', -1, 64))
	}
	return call{method: http.MethodPost, path: path + "/" + o.Action, query: query, access: withAdminKey, extra: o.Timeout}
}

// Ordered is what became of an order: one of the two is set.
type Ordered struct {
	// Node is how the node is now that the order was carried out.
	Node *api.TreeNode
	// Plan is what will be done: it stops the HTTP server, so the reply came
	// first.
	Plan *api.Plan
}

// Operate gives an order and waits until it was carried out and all is well.
// Not safe to repeat blindly: a restart restarts each time.
func (c *Client) Operate(ctx context.Context, o Order) (Ordered, error) {
	cl := o.call(url.Values{})
	var raw json.RawMessage
	if err := c.json(ctx, cl, api.Order{Reason: o.Reason}, &raw); err != nil {
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

// Plan returns what an order would do. Nothing is changed. Safe to repeat.
func (c *Client) Plan(ctx context.Context, o Order) (api.Plan, error) {
	var out api.Plan
	err := c.json(ctx, o.call(url.Values{"dry_run": {"1"}}), api.Order{Reason: o.Reason}, &out)
	return out, err
}

// HeartbeatSettings returns the time-outs in force. Safe to repeat.
func (c *Client) HeartbeatSettings(ctx context.Context) (api.HeartbeatSettings, error) {
	var out api.HeartbeatSettings
	err := c.json(ctx, call{method: http.MethodGet, path: "/admin/heartbeat", access: withAdminKey}, nil, &out)
	return out, err
}

// SetHeartbeat changes the time-outs that are set and returns all of them. Safe
// to repeat.
func (c *Client) SetHeartbeat(ctx context.Context, h api.HeartbeatSettings) (api.HeartbeatSettings, error) {
	var out api.HeartbeatSettings
	err := c.json(ctx, call{method: http.MethodPut, path: "/admin/heartbeat", access: withAdminKey}, h, &out)
	return out, err
}

// Audit returns what operators did, newest first; limit 0 means the
// controller's default. Safe to repeat.
func (c *Client) Audit(ctx context.Context, limit int) (api.Audit, error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var out api.Audit
	err := c.json(ctx, call{method: http.MethodGet, path: "/admin/audit", query: query, access: withAdminKey}, nil, &out)
	return out, err
}
