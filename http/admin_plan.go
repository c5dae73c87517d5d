package http

import (
	"path"
	"slices"
	"strings"
	"time"

	"takt/http/api"
	"takt/store"
)

// The actions on the tree.
const (
	restart   = "restart"
	terminate = "terminate"
	start     = "start"
)

// order is an operator's command to the tree.
type order struct {
	api.OrderNodeIn
	action  string
	timeout time.Duration
}

// plan lists the effects of an order.
type plan struct {
	node *api.TreeNode
	// group is the node and the siblings that the parent's strategy ties to it. They stop
	// or start together; the list is in start order.
	group []*api.TreeNode
	// detached says that the order stops the HTTP server that carries it out.
	detached bool
}

// makePlan decides what o does to the tree under root, or why it must not.
func makePlan(root *api.TreeNode, o order) (plan, error) {
	at := absolute(root, o.Path)
	node, parent := findNode(root, at), findNode(root, path.Dir(at))
	if node == nil {
		return plan{}, errNoNode(root, o.Path)
	}
	p := plan{node: node, group: []*api.TreeNode{node}}
	if o.action == restart && parent != nil {
		p.group = restartGroup(parent, node)
	}
	endpoint := root.Path + "/endpoint"
	p.detached = o.action != start && slices.Contains(p.affected(), endpoint)
	if err := permitted(root, parent, node, o); err != nil {
		return plan{}, err
	}
	return p, nil
}

// restartGroup returns the children of parent that its strategy restarts with node.
func restartGroup(parent, node *api.TreeNode) []*api.TreeNode {
	all := make([]*api.TreeNode, len(parent.Children))
	at := 0
	for i := range all {
		if all[i] = &parent.Children[i]; all[i].Path == node.Path {
			at = i
		}
	}
	switch parent.Strategy {
	case "one_for_all":
		return all
	case "rest_for_one":
		return all[at:]
	default:
		return all[at : at+1]
	}
}

// PlanOrder returns what an order to the tree that describe shows would stop and start, and
// whether takt could serve no request after it. If the order would be refused even with
// force, the error says why.
func PlanOrder(describe func(all bool) api.TreeNode, action, path string) (shown api.Plan, last bool, err error) {
	o := order{OrderNodeIn: api.OrderNodeIn{Path: path, DryRun: true, Force: true}, action: action}
	if !slices.Contains([]string{restart, terminate, start}, action) {
		return shown, false, store.NewError(store.NotFound, "No such action: restart, terminate or start")
	}
	root := describe(false)
	p, err := makePlan(&root, o)
	if store.CodeOf(err) == store.NotFound {
		root = describe(true)
		p, err = makePlan(&root, o)
	}
	if err != nil {
		return api.Plan{Action: action, Path: absolute(&root, path)}, false, err
	}
	return p.wire(o, 0), action == terminate && vital(&root, p.node), nil
}

// permitted returns why an order is refused, or nil. The supervisor may still refuse it.
func permitted(root, parent, node *api.TreeNode, o order) error {
	conflict := func(text string) error { return store.NewError(store.Conflict, node.Path+" "+text) }
	switch {
	case node.Restart == "temporary" || parent != nil && parent.Strategy == "simple_one_for_one":
		return conflict("is temporary: nobody starts it again")
	case o.action == restart && node.Status == "terminated":
		return conflict("is terminated: start it")
	case o.action != terminate && node.Status == "restarting":
		return conflict("is being restarted already")
	case o.action == start && node.Status != "terminated":
		return conflict("is running")
	case o.action == terminate && !o.Force && vital(root, node):
		return conflict("is what all depends on: add force=1 to terminate it")
	}
	return nil
}

// vital reports whether takt could serve no request without node, perhaps not even one that
// starts it again: it is the root, or the endpoint, the database or a part of these.
func vital(root, node *api.TreeNode) bool {
	part, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(node.Path, root.Path), "/"), "/")
	return part == "" || part == "endpoint" || part == "database"
}

// affected lists the paths of all nodes that stop, in stop order.
func (p plan) affected() []string {
	var paths []string
	var add func(n *api.TreeNode)
	add = func(n *api.TreeNode) {
		for i := range slices.Backward(n.Children) {
			add(&n.Children[i])
		}
		paths = append(paths, n.Path)
	}
	for _, n := range slices.Backward(p.group) {
		add(n)
	}
	return paths
}

// wire is the plan as a reply, with the number of requests that it ends.
func (p plan) wire(o order, requests int) api.Plan {
	affected := p.affected()
	if o.action == start {
		slices.Reverse(affected)
	}
	return api.Plan{Action: o.action, Path: p.node.Path, Affected: affected, Requests: requests, Detached: p.detached}
}

// ailing returns the first node under n that does not run as it should, or nil.
func ailing(n *api.TreeNode) *api.TreeNode {
	for i := range n.Children {
		if bad := ailing(&n.Children[i]); bad != nil {
			return bad
		}
	}
	if n.Status != "running" {
		return n
	}
	return nil
}

// absolute adds the root's id to a path that leaves it out.
func absolute(root *api.TreeNode, path string) string {
	path = strings.Trim(path, "/")
	if path == root.Path || strings.HasPrefix(path, root.Path+"/") {
		return path
	}
	return strings.TrimSuffix(root.Path+"/"+path, "/")
}

// errNoNode says that there is no node called path, and which have its last part as their name.
func errNoNode(root *api.TreeNode, at string) error {
	const most = 5
	text := "No such process"
	if near := namedAs(root, path.Base(at), nil); len(near) > 0 && len(near) <= most {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return store.NewError(store.NotFound, text)
}

// namedAs adds to paths those of the nodes below n that are called name.
func namedAs(n *api.TreeNode, name string, paths []string) []string {
	for i := range n.Children {
		if child := &n.Children[i]; child.ID == name {
			paths = append(paths, child.Path)
		}
		paths = namedAs(&n.Children[i], name, paths)
	}
	return paths
}

// findNode finds the node of path in the tree under n, or nil.
func findNode(n *api.TreeNode, path string) *api.TreeNode {
	if n.Path == path {
		return n
	}
	if !strings.HasPrefix(path, n.Path+"/") {
		return nil
	}
	for i := range n.Children {
		if found := findNode(&n.Children[i], path); found != nil {
			return found
		}
	}
	return nil
}
