package http

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	orderTimeout    = 10 * time.Second
	maxOrderTimeout = 60 * time.Second
	// healthTick is the time between two checks of the tree until it is healthy.
	healthTick = 10 * time.Millisecond
)

// tree shows the supervision tree and carries out operators' orders.
type tree struct {
	edge     *edge.Server
	audit    *audit
	operator Operator
	snapshot func(all bool) api.TreeNode

	mu      sync.Mutex
	stopped map[string]*api.Termination // by path; guarded by mu
}

func newTree(s *edge.Server, a *audit, operator Operator, snapshot func(all bool) api.TreeNode) *tree {
	return &tree{edge: s, audit: a, operator: operator, snapshot: snapshot, stopped: map[string]*api.Termination{}}
}

// describe returns the tree, with who terminated what. Memory knows it while the database, and the
// audit with it, may be what is terminated.
func (h *tree) describe(all bool) api.TreeNode {
	h.mu.Lock() // an older snapshot could show what was terminated meanwhile as running
	defer h.mu.Unlock()
	root := h.snapshot(all)
	for path, by := range h.stopped {
		switch node := findNode(&root, path); {
		case node == nil: // its supervisor is stopped, too
		case node.Status == "terminated":
			node.Terminated = by
		case node.Status == "running":
			delete(h.stopped, path)
		}
	}
	return root
}

// remember keeps who has terminated a process.
func (h *tree) remember(path string, e *store.AuditEntry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped[path] = &api.Termination{By: e.Actor, At: *api.NewMillis(e.At), Reason: e.Reason}
}

func (h *tree) routes() []edge.Route {
	// The three orders share a path, because the node's path is several segments.
	orders := h.edge.Of(api.RestartNode.Route)
	orders.Path, orders.Handle = api.ShowNode.Path, h.order
	return []edge.Route{edge.On(h.edge, api.ShowTree, h.root), edge.On(h.edge, api.ShowNode, h.show), orders}
}

func (h *tree) root(ctx context.Context, in api.ShowTreeIn) (api.TreeNode, error) {
	return h.show(ctx, api.ShowNodeIn{ShowTreeIn: in})
}

// show returns a node; "" is the root.
func (h *tree) show(_ context.Context, in api.ShowNodeIn) (api.TreeNode, error) {
	root := h.describe(in.Children == "all")
	node := findNode(&root, absolute(&root, in.Path))
	if node == nil {
		return api.TreeNode{}, errNoNode(&root, in.Path)
	}
	return *node, nil
}

// order handles POST /admin/tree/*, whose last segment is the action: restart, terminate
// or start. It answers when the node is in the requested state and healthy. If the order
// stops the HTTP server itself, it answers 202 first.
func (h *tree) order(ctx context.Context, c echo.Context) (any, error) {
	return h.give(ctx, edge.RequestOf(c), func(shown api.Plan) error {
		defer c.Response().Flush()
		return h.edge.Reply(c, edge.Reply{Status: http.StatusAccepted, Body: shown})
	})
}

// give carries out the order that r asks for. accepted answers before an order that stops this
// server; for others it returns the node.
func (h *tree) give(ctx context.Context, r api.Request, accepted func(shown api.Plan) error) (any, error) {
	o, err := readOrder(r)
	if err != nil {
		return nil, err
	}
	root := h.describe(false)
	p, err := makePlan(&root, o)
	if store.CodeOf(err) == store.NotFound { // perhaps it is a dynamic child
		root = h.describe(true)
		p, err = makePlan(&root, o)
	}
	if err != nil {
		return nil, err
	}
	// One of the requests in flight is the operator's own.
	shown := p.wire(o, max(h.edge.Running()-1, 0))
	if o.DryRun {
		return shown, nil
	}
	e := h.audit.begin(ctx, entry{o.action, p.node.Path, o.Body.Reason, map[string]any{
		"affected": p.affected(), "force": o.Force, "timeout": o.timeout.Seconds(),
	}})
	if p.detached {
		if err := accepted(shown); err != nil {
			return nil, err
		}
		o.timeout = maxOrderTimeout // running requests may finish, and no client waits
	}
	done := make(chan error, 1)
	h.audit.background(func(ctx context.Context) {
		err := h.carryOut(ctx, o, p)
		if o.action == terminate && (err == nil || store.CodeOf(err) == store.Timeout) { // then it goes on
			h.remember(p.node.Path, e)
		}
		written := h.audit.conclude(ctx, e, err)
		done <- err
		if !written {
			h.audit.concludeLater(ctx, e)
		}
	})
	if p.detached {
		return nil, nil
	}
	return h.await(ctx, p, done)
}

// await answers with the node, or with why it is not in the requested state.
func (h *tree) await(ctx context.Context, p plan, done <-chan error) (any, error) {
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-edge.Stopping(ctx).Done():
		return nil, store.NewError(store.Unavailable, "The controller is restarting; the order is carried out")
	}
	root := h.describe(false)
	node := findNode(&root, p.node.Path)
	if node == nil {
		return nil, store.NewError(store.Unavailable, p.node.Path+" is gone again")
	}
	return node, nil
}

// readOrder reads an order from path, query and body.
func readOrder(r api.Request) (o order, err error) {
	whole := strings.Trim(r.Path("*"), "/")
	i := strings.LastIndexByte(whole, '/')
	o.action = whole[i+1:]
	switch o.action {
	case restart, terminate, start:
	default:
		return o, store.NewError(store.NotFound, "No such action: restart, terminate or start")
	}
	if o.OrderNodeIn, err = api.RestartNode.Read(r); err != nil {
		return o, err
	}
	o.Path = whole[:max(i, 0)]
	o.timeout, err = api.ParseDuration(cmp.Or(o.Timeout, orderTimeout.String()))
	if err != nil || o.timeout <= 0 || o.timeout > maxOrderTimeout {
		return o, edge.Invalid("timeout must be more than 0 and at most 60 seconds")
	}
	if o.Body.Reason == "" && !o.DryRun {
		return o, edge.Invalid("reason is required")
	}
	return o, nil
}

// carryOut has the tree carry out the order and waits until the group is healthy again.
func (h *tree) carryOut(ctx context.Context, o order, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	at := p.node.Path
	switch o.action {
	case terminate:
		return h.operator.Terminate(ctx, at)
	case start:
		if err := h.operator.StartChild(ctx, at); err != nil {
			return err
		}
		return h.awaitHealth(ctx, o, p, nil)
	default:
		err := h.operator.Restart(ctx, at)
		if err != nil && !store.IsUnavailable(err) {
			return err
		}
		return h.awaitHealth(ctx, o, p, err) // a failed start is retried
	}
}

// awaitHealth returns nil when the whole group of the plan runs and is not suspended.
// When ctx ends first, its error names a node that is not healthy. failed is an earlier
// error.
func (h *tree) awaitHealth(ctx context.Context, o order, p plan, failed error) error {
	tick := time.NewTicker(healthTick)
	defer tick.Stop()
	for {
		bad := h.firstUnhealthy(p)
		if bad == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return store.Wrap(store.Timeout, bad+" after "+o.timeout.String(), errors.Join(failed, context.Cause(ctx)))
		}
	}
}

// firstUnhealthy describes the first node of the plan's group that is not healthy; "" if all
// are.
func (h *tree) firstUnhealthy(p plan) string {
	root := h.describe(false)
	for _, n := range p.group {
		if n.Restart == "temporary" {
			continue // stopped with the others, and not started again
		}
		now := findNode(&root, n.Path)
		if now == nil {
			return n.Path + " is not there"
		}
		if bad := ailing(now); bad != nil {
			why := bad.Path + " is still " + bad.Status
			if bad.Detail != "" {
				why += " (" + bad.Detail + ")"
			}
			return why
		}
	}
	return ""
}
