package api

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
var ShowTree = declare[ShowTreeIn, TreeNode](Route{
	ID: "showTree", Method: "GET", Path: "/admin/tree",
	Tag: "operators", Access: AdminKey, Class: Ops, Errors: []int{404},
	Summary: "Show the supervision tree",
})

// ShowNode is GET /admin/tree/*.
var ShowNode = declare[ShowNodeIn, TreeNode](Route{
	ID: "showNode", Method: "GET", Path: "/admin/tree/*",
	Tag: "operators", Access: AdminKey, Class: Ops,
	Summary: "Show one process and what is under it",
})

// RestartNode is POST /admin/tree/*/restart.
var RestartNode = declare[OrderNodeIn, TreeNode](Route{
	ID: "restartNode", Method: "POST", Path: "/admin/tree/*/restart",
	Tag: "operators", Access: AdminKey, Class: Ops, Errors: []int{409, 504},
	Takes: Order{}, Says: "The process as it is then; with `dry_run` the plan.", Sends: []any{TreeNode{}, Plan{}},
	Replies: []Reply{{Status: 202, Says: "The plan, which ends this very server and so is carried out after the reply.", Sends: Plan{}}},
	Summary: "Restart a process, and whom its supervisor restarts with it",
})

// TerminateNode is POST /admin/tree/*/terminate.
var TerminateNode = declare[OrderNodeIn, TreeNode](Route{
	ID: "terminateNode", Method: "POST", Path: "/admin/tree/*/terminate",
	Tag: "operators", Access: AdminKey, Class: Ops, Errors: []int{409, 504},
	Takes: Order{}, Says: "The process as it is then; with `dry_run` the plan.", Sends: []any{TreeNode{}, Plan{}},
	Replies: []Reply{{Status: 202, Says: "The plan, which ends this very server and so is carried out after the reply.", Sends: Plan{}}},
	Summary: "Stop a process until it is started",
})

// StartNode is POST /admin/tree/*/start.
var StartNode = declare[OrderNodeIn, TreeNode](Route{
	ID: "startNode", Method: "POST", Path: "/admin/tree/*/start",
	Tag: "operators", Access: AdminKey, Class: Ops, Errors: []int{409, 504},
	Takes: Order{}, Says: "The process as it is then; with `dry_run` the plan.", Sends: []any{TreeNode{}, Plan{}},
	Replies: []Reply{{Status: 202, Says: "The plan, which ends this very server and so is carried out after the reply.", Sends: Plan{}}},
	Summary: "Start a process that was terminated",
})
