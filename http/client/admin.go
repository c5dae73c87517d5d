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

// Health returns the controller's public health. Safe to repeat.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	return ask[api.Health](ctx, c, call{method: http.MethodGet, path: "/health", public: true})
}

// Metrics returns the controller's figures in Prometheus' text format. Safe to
// repeat.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	return ask[string](ctx, c, call{method: http.MethodGet, path: "/metrics", public: true, header: http.Header{"Accept": {"text/plain"}}})
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
	cl := call{method: http.MethodGet, path: treePath(o.Path)}
	if o.All {
		cl.query = query("children", "all")
	}
	return ask[api.TreeNode](ctx, c, cl)
}

func treePath(node string) string {
	if node == "" {
		return "/admin/tree"
	}
	return "/admin/tree/" + (&url.URL{Path: node}).EscapedPath()
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
	timeout := ""
	if o.Timeout > 0 {
		timeout = strconv.FormatFloat(o.Timeout.Seconds(), 'f', -1, 64)
	}
	return call{
		method: http.MethodPost, path: treePath(o.Path) + "/" + o.Action, body: api.Order{Reason: o.Reason}, extra: o.Timeout,
		query: query("dry_run", flag(dry), "force", flag(o.Force), "timeout", timeout),
	}
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

// HeartbeatSettings returns the time-outs in force. Safe to repeat.
func (c *Client) HeartbeatSettings(ctx context.Context) (api.HeartbeatSettings, error) {
	return ask[api.HeartbeatSettings](ctx, c, call{method: http.MethodGet, path: "/admin/heartbeat"})
}

// SetHeartbeat changes the time-outs that are set in h and returns all of them. Safe
// to repeat.
func (c *Client) SetHeartbeat(ctx context.Context, h api.HeartbeatSettings) (api.HeartbeatSettings, error) {
	return ask[api.HeartbeatSettings](ctx, c, call{method: http.MethodPut, path: "/admin/heartbeat", body: h})
}

// Audit returns what operators did, newest first; limit 0 means the
// controller's default. Safe to repeat.
func (c *Client) Audit(ctx context.Context, limit int) (api.Audit, error) {
	return ask[api.Audit](ctx, c, call{method: http.MethodGet, path: "/admin/audit", query: query("limit", positive(limit))})
}

// CheckInvariants checks the database's invariants and returns the results. With a
// reason in repair it also repairs what can be repaired without losing data. Safe to
// repeat.
func (c *Client) CheckInvariants(ctx context.Context, repair string) (api.Invariants, error) {
	if repair == "" {
		return ask[api.Invariants](ctx, c, call{method: http.MethodGet, path: "/admin/audit/check"})
	}
	return ask[api.Invariants](ctx, c, call{method: http.MethodPost, path: "/admin/audit/check", body: api.Order{Reason: repair}})
}

// Fault makes a fault in a controller that allows drills. It returns when the fault has
// begun.
func (c *Client) Fault(ctx context.Context, f api.Fault) (api.Fault, error) {
	return ask[api.Fault](ctx, c, call{method: http.MethodPost, path: "/admin/drill", body: f})
}

// Heijunka returns the state of load levelling. Safe to repeat.
func (c *Client) Heijunka(ctx context.Context) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodGet, "", nil)
}

// SetHeijunkaLimits changes the limits of admission. Safe to repeat.
func (c *Client) SetHeijunkaLimits(ctx context.Context, l api.HeijunkaLimits) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPut, "/limits", l)
}

// ScalePool changes the size of a pool. Not safe to repeat with By set.
func (c *Client) ScalePool(ctx context.Context, pool string, s api.HeijunkaScale) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPost, "/pools/"+url.PathEscape(pool)+"/scale", s)
}

// SetAffinity changes the pools that a domain prefers. Safe to repeat.
func (c *Client) SetAffinity(ctx context.Context, a api.HeijunkaAffinity) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPut, "/affinity", a)
}

// Surge starts or stops a surge, or enables or disables burst detection. Safe to
// repeat.
func (c *Client) Surge(ctx context.Context, s api.HeijunkaSurge) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPost, "/surge", s)
}

func (c *Client) heijunka(ctx context.Context, method, path string, body any) (api.Heijunka, error) {
	return ask[api.Heijunka](ctx, c, call{method: method, path: "/admin/heijunka" + path, body: body})
}

// Rebalance moves a worker to the pool that needs it more. With dry it only returns
// what it would do. Not safe to repeat, because a repeat may move another worker.
func (c *Client) Rebalance(ctx context.Context, reason string, dry bool) (api.HeijunkaRebalance, error) {
	return ask[api.HeijunkaRebalance](ctx, c, call{
		method: http.MethodPost, path: "/admin/heijunka/rebalance", query: query("dry_run", flag(dry)), body: api.Order{Reason: reason},
	})
}

// Debug describes the inside of the controller. Safe to repeat.
func (c *Client) Debug(ctx context.Context) (api.Debug, error) {
	return ask[api.Debug](ctx, c, call{method: http.MethodGet, path: "/admin/debug"})
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
	return ask[string](ctx, c, call{
		method: http.MethodGet, path: "/admin/debug/pprof/" + url.PathEscape(o.Name), extra: o.Record,
		query: query("seconds", positive(int(o.Record/time.Second)), "debug", positive(o.Text)),
	})
}
