package api

import (
	"fmt"
	"strings"
)

// Termination is who terminated a process, when and why, as the audit has it.
type Termination struct {
	By     string `json:"by"`
	At     Millis `json:"at"`
	Reason string `json:"reason"`
}

// Below says how many processes below n do not run, such as "1 terminated, 5 suspended"; "" if
// all run.
func (n TreeNode) Below() string {
	count := map[string]int{}
	var add func(all []TreeNode)
	add = func(all []TreeNode) {
		for i := range all {
			count[all[i].Status]++
			add(all[i].Children)
		}
	}
	add(n.Children)
	var parts []string
	for _, status := range [...]string{"terminated", "stopping", "restarting", "starting", "suspended"} {
		if count[status] > 0 {
			parts = append(parts, fmt.Sprint(count[status], " ", status))
		}
	}
	return strings.Join(parts, ", ")
}

// ShowTreeIn is the input of ShowTree.
type ShowTreeIn struct {
	// Children is all to list the children of dynamic supervisors, too.
	Children string `query:"children"`
}

// ShowNodeIn is the input of ShowNode.
type ShowNodeIn struct {
	// Path has the ids from the root, joined by "/", such as takt/database/pool; the root
	// may be left out.
	Path string `path:"*"`
	ShowTreeIn
}

// OrderNodeIn is the input of RestartNode, TerminateNode and StartNode.
type OrderNodeIn struct {
	// Path has the ids from the root, joined by "/", such as takt/database/pool; the root
	// may be left out.
	Path string `path:"*"`
	// Timeout is how many seconds to wait, up to 60; 10 by default.
	Timeout string `query:"timeout" type:"number" over:"0" max:"60"`
	Force   bool   `query:"force"`
	DryRun  bool   `query:"dry_run"`
	Body    Reason `body:"json"`
}

// ShowTree is GET /admin/tree.
var ShowTree = declare[ShowTreeIn, TreeNode](operators, AdminKey, scopeAdmin, Ops, "GET /admin/tree", Route{
	ID: "showTree", Errors: []int{404}, Summary: "Show the supervision tree",
})

// ShowNode is GET /admin/tree/*.
var ShowNode = declare[ShowNodeIn, TreeNode](operators, AdminKey, scopeAdmin, Ops, "GET /admin/tree/*", Route{ID: "showNode", Summary: "Show a process and those below it"})

// nodeOrder describes an order to a process.
func nodeOrder(id, summary string) Route {
	return Route{
		ID: id, Errors: []int{409, 504}, Takes: Order{}, Summary: summary,
		Says: "The process as it is then; with `dry_run` the plan.", Sends: []any{TreeNode{}, Plan{}},
		Replies: []Reply{{Status: 202, Says: "The plan. It ends this server, so it is carried out after the reply.", Sends: Plan{}}},
	}
}

// RestartNode is POST /admin/tree/*/restart.
var RestartNode = declare[OrderNodeIn, TreeNode](operators, AdminKey, scopeAdmin, Ops, "POST /admin/tree/*/restart", nodeOrder("restartNode", "Restart a process, and whom its supervisor restarts with it"))

// TerminateNode is POST /admin/tree/*/terminate.
var TerminateNode = declare[OrderNodeIn, TreeNode](operators, AdminKey, scopeAdmin, Ops, "POST /admin/tree/*/terminate", nodeOrder("terminateNode", "Stop a process until it is started"))

// StartNode is POST /admin/tree/*/start.
var StartNode = declare[OrderNodeIn, TreeNode](operators, AdminKey, scopeAdmin, Ops, "POST /admin/tree/*/start", nodeOrder("startNode", "Start a process that was terminated"))
