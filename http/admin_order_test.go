package http_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/store"
)

// treeWithOrders is a tree that takes orders, with an audit of its own.
type treeWithOrders struct {
	mu       sync.Mutex
	root     api.TreeNode
	orders   []string
	err      error                 // of the next order
	after    func(n *api.TreeNode) // what an order does to its node
	entries  []store.AuditEntry
	away     bool // the audit's database is
	running  sync.WaitGroup
	timeouts store.Timeouts
	broken   atomic.Int64 // rows that break an invariant
	checks   atomic.Int64
}

func child(parent *api.TreeNode, id, strategy string) *api.TreeNode {
	kind := "supervisor"
	if strategy == "" {
		kind = "worker"
	}
	parent.Children = append(parent.Children, api.TreeNode{
		ID: id, Type: kind, Path: parent.Path + "/" + id, Strategy: strategy, Restart: "permanent", Status: "running",
	})
	return &parent.Children[len(parent.Children)-1]
}

func newTreeWithOrders() *treeWithOrders {
	p := &treeWithOrders{root: api.TreeNode{ID: "takt", Type: "supervisor", Path: "takt", Strategy: "one_for_one", Restart: "permanent", Status: "running"}}
	database := child(&p.root, "database", "rest_for_one")
	for _, id := range []string{"postgres", "pool", "listener"} {
		child(database, id, "")
	}
	all := child(&p.root, "heijunka", "one_for_all")
	child(all, "a", "")
	child(all, "b", "")
	requests := child(&p.root, "request_sup", "simple_one_for_one")
	child(requests, "request", "").Restart = "temporary"
	child(&p.root, "endpoint", "")
	p.timeouts = store.Timeouts{CheckInterval: time.Minute, BuildTimeout: 5 * time.Minute, WorkerTimeout: 5 * time.Minute}
	return p
}

func (p *treeWithOrders) find(n *api.TreeNode, path string) *api.TreeNode {
	if n.Path == path {
		return n
	}
	for i := range n.Children {
		if found := p.find(&n.Children[i], path); found != nil {
			return found
		}
	}
	return nil
}

// set changes the node at path.
func (p *treeWithOrders) set(path string, change func(n *api.TreeNode)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p.find(&p.root, path))
}

func (p *treeWithOrders) tree(bool) api.TreeNode {
	p.mu.Lock()
	defer p.mu.Unlock()
	raw, _ := json.Marshal(p.root) // a deep copy
	var n api.TreeNode
	_ = json.Unmarshal(raw, &n)
	return n
}

func (p *treeWithOrders) order(action, path string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.orders = append(p.orders, action+" "+path)
	if p.after != nil {
		p.after(p.find(&p.root, path))
	}
	return p.err
}

func (p *treeWithOrders) Restart(_ context.Context, path string) error {
	return p.order("restart", path)
}

func (p *treeWithOrders) Terminate(_ context.Context, path string) error {
	return p.order("terminate", path)
}

func (p *treeWithOrders) StartChild(_ context.Context, path string) error {
	return p.order("start", path)
}

func (p *treeWithOrders) Append(_ context.Context, e store.AuditEntry) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return 0, store.NewError(store.Unavailable, "away")
	}
	e.ID = int64(len(p.entries) + 1)
	p.entries = append(p.entries, e)
	return e.ID, nil
}

func (p *treeWithOrders) Conclude(_ context.Context, id int64, outcome string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return store.NewError(store.Unavailable, "away")
	}
	p.entries[id-1].Outcome = outcome
	return nil
}

func (p *treeWithOrders) List(_ context.Context, _ string, page store.Page) ([]store.AuditEntry, store.Cursor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest := slices.Clone(p.entries)
	slices.Reverse(newest)
	return newest[:min(page.Limit, len(newest))], "", nil
}

// concluded waits until n entries have an outcome.
func (p *treeWithOrders) concluded(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		known := 0
		for _, e := range p.entries {
			if e.Outcome != "" {
				known++
			}
		}
		return known == n
	}, waitFor, tick)
}

func (p *treeWithOrders) Timeouts(context.Context) (store.Timeouts, error) { return p.timeouts, nil }

func (p *treeWithOrders) Update(_ context.Context, t store.Timeouts) error {
	if t.BuildTimeout < time.Second {
		return store.NewError(store.InvalidArgument, "build_timeout is too short")
	}
	p.timeouts = t
	return nil
}

func (p *treeWithOrders) Check(context.Context) ([]store.Invariant, error) {
	p.checks.Add(1)
	return []store.Invariant{{Name: "worker_held", Promise: "It counts.", Broken: p.broken.Load(), Examples: []string{"w1"}, Repairable: true}}, nil
}

func (p *treeWithOrders) repair(ctx context.Context) ([]store.Invariant, error) {
	found, err := p.Check(ctx)
	found[0].Repaired = p.broken.Swap(0)
	return found, err
}

func TestInvariantsAreCheckedAndRepairedWithAReason(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	p.broken.Store(2)
	found := func(r reply) store.Invariant {
		require.Equal(t, 200, r.status)
		return decode[api.Invariants](t, r).Invariants[0]
	}
	require.EqualValues(t, 2, found(ask("GET", "/admin/audit/check", "")).Broken)
	require.Equal(t, 400, ask("POST", "/admin/audit/check", `{}`).status)
	require.Empty(t, p.entries, "what changes nothing is not written down")
	require.EqualValues(t, 2, found(ask("POST", "/admin/audit/check", `{"reason":"a bad restore"}`)).Repaired)
	p.running.Wait()
	require.EqualValues(t, 3, p.checks.Load(), "one more after the repair, for the metrics")
	require.Zero(t, found(ask("GET", "/admin/audit/check", "")).Broken)
	require.Equal(t, []string{"repair", "database", "a bad restore"}, []string{p.entries[0].Action, p.entries[0].Target, p.entries[0].Reason})
}

// operated serves a treeWithOrders.
func operated(t *testing.T, change ...func(*takthttp.Deps)) (*treeWithOrders, func(method, path, body string) reply) {
	t.Helper()
	p := newTreeWithOrders()
	deps := takthttp.Deps{
		Tree: p.tree, Operator: p, Audit: p, Auditor: p, Repair: p.repair, Heartbeat: p,
		Background: func(run func(context.Context)) {
			ctx := t.Context()
			p.running.Go(func() { run(ctx) })
		},
	}
	for _, f := range change {
		f(&deps)
	}
	s, _ := newServer(t, deps)
	t.Cleanup(p.running.Wait)
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	return p, func(method, path, body string) reply {
		header := map[string]string{"X-Admin-Key": adminKey, "Content-Type": "application/json"}
		return send(t, c, method, url+path, header, strings.NewReader(body))
	}
}

const why = `{"reason":"it is stuck"}`

func TestOrdersAreCarriedOutAndWrittenDown(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	r := ask("POST", "/admin/tree/takt/database/pool/restart?timeout=5s", why)
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, "pool", decode[api.TreeNode](t, r).ID)
	p.after = func(n *api.TreeNode) { n.Status = "terminated" }
	r = ask("POST", "/admin/tree/heijunka/a/terminate", why)
	require.Equal(t, 200, r.status, r.body)
	stopped := decode[api.TreeNode](t, ask("GET", "/admin/tree/heijunka/a", "")).Terminated
	require.Equal(t, []string{"admin@127.0.0.1", "it is stuck"}, []string{stopped.By, stopped.Reason})
	require.WithinDuration(t, time.Now(), stopped.At.Time(), waitFor)
	p.after = func(n *api.TreeNode) { n.Status = "running" }
	r = ask("POST", "/admin/tree/takt/heijunka/a/start", why)
	require.Equal(t, 200, r.status, r.body)
	require.Equal(t, []string{"restart takt/database/pool", "terminate takt/heijunka/a", "start takt/heijunka/a"}, p.orders)
	p.set("takt/heijunka/a", func(n *api.TreeNode) { n.Status = "terminated" })
	require.Nil(t, decode[api.TreeNode](t, ask("GET", "/admin/tree/heijunka/a", "")).Terminated, "not by that order")
	p.set("takt/heijunka/a", func(n *api.TreeNode) { n.Status = "running" })

	r = ask("GET", "/admin/audit", "")
	require.Equal(t, 200, r.status)
	requireShape(t, "audit", r)
	entries := decode[api.Audit](t, r).Entries
	require.Len(t, entries, 3)
	require.Equal(t, "start", entries[0].Action)
	restart := entries[2]
	require.Equal(t, "admin@127.0.0.1", restart.Actor)
	require.Equal(t, "takt/database/pool", restart.Target)
	require.Equal(t, "it is stuck", restart.Reason)
	require.Equal(t, "done", *restart.Outcome)
	require.Contains(t, string(restart.Detail), `"affected":["takt/database/listener","takt/database/pool"]`)
	require.Len(t, decode[api.Audit](t, ask("GET", "/admin/audit?limit=1", "")).Entries, 1)
	for _, limit := range []string{"0", "1001", "x"} {
		require.Equal(t, 400, ask("GET", "/admin/audit?limit="+limit, "").status)
	}
}

func TestOrdersAreRefused(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	p.set("takt/heijunka/a", func(n *api.TreeNode) { n.Status = "terminated" })
	p.set("takt/heijunka/b", func(n *api.TreeNode) { n.Status = "restarting" })
	for _, tc := range []struct {
		path, body string
		status     int
		text       string
	}{
		{"takt/nobody/restart", why, 404, "No such process"},
		{"pool/restart", why, 404, "No such process; did you mean takt/database/pool?"},
		{"takt/database/explode", why, 404, "No such action"},
		{"takt/database/restart", `{}`, 400, "reason is required"},
		{"takt/database/restart", ``, 400, "reason is required"},
		{"takt/database/restart", `{"reason":"  "}`, 400, "reason is required"},
		{"takt/database/restart", `{"reason":"` + strings.Repeat("x", 1001) + `"}`, 400, "at most 1000"},
		{"takt/database/restart?timeout=0", why, 400, "timeout"},
		{"takt/database/restart?timeout=61", why, 400, "timeout"},
		{"takt/database/restart?force=maybe", why, 400, "force"},
		{"takt/heijunka/a/restart", why, 409, "is terminated"},
		{"takt/heijunka/b/restart", why, 409, "restarted already"},
		{"takt/database/start", why, 409, "is running"},
		{"takt/request_sup/request/restart", why, 409, "is temporary"},
		{"takt/database/terminate", why, 409, "force=1"},
		{"takt/database/pool/terminate", why, 409, "force=1"},
		{"takt/database/postgres/terminate", why, 409, "force=1"},
		{"takt/endpoint/terminate", why, 409, "force=1"},
		{"takt/terminate", why, 409, "force=1"},
		{"terminate", why, 409, "force=1"},
	} {
		r := ask("POST", "/admin/tree/"+tc.path, tc.body)
		require.Equal(t, tc.status, r.status, "%s: %s", tc.path, r.body)
		require.Contains(t, decode[api.Problem](t, r).Error, tc.text)
	}
	require.Empty(t, p.orders)
	require.Empty(t, p.entries, "nothing was done")
	require.Equal(t, 200, ask("POST", "/admin/tree/takt/database/pool/terminate?force=1", why).status)
}

func TestOrdersAsADryRunShowWhatWouldBeAffected(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	for path, want := range map[string]api.Plan{
		"takt/database/pool/restart": {Affected: []string{"takt/database/listener", "takt/database/pool"}},
		"heijunka/a/restart":         {Affected: []string{"takt/heijunka/b", "takt/heijunka/a"}},
		"heijunka/a/terminate":       {Affected: []string{"takt/heijunka/a"}},
		"takt/database/restart":      {Affected: []string{"takt/database/listener", "takt/database/pool", "takt/database/postgres", "takt/database"}},
		"takt/endpoint/restart":      {Affected: []string{"takt/endpoint"}, Detached: true},
		"restart": {Detached: true, Affected: []string{
			"takt/endpoint", "takt/request_sup/request", "takt/request_sup", "takt/heijunka/b", "takt/heijunka/a", "takt/heijunka",
			"takt/database/listener", "takt/database/pool", "takt/database/postgres", "takt/database", "takt",
		}},
	} {
		r := ask("POST", "/admin/tree/"+path+"?dry_run=1", "")
		require.Equal(t, 200, r.status, r.body)
		requireShape(t, "plan", r)
		got := decode[api.Plan](t, r)
		require.Equal(t, want.Affected, got.Affected, path)
		require.Equal(t, want.Detached, got.Detached, path)
		require.Zero(t, got.Requests, "but this one")
	}
	require.Empty(t, p.orders)
	require.Empty(t, p.entries)
}

func TestOrderThatStopsTheServerIsAnsweredFirst(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"takt/endpoint", "takt"} {
		p, ask := operated(t)
		r := ask("POST", "/admin/tree/"+path+"/restart", why)
		require.Equal(t, http.StatusAccepted, r.status, r.body)
		require.True(t, decode[api.Plan](t, r).Detached)
		p.concluded(t, 1)
		require.Equal(t, []string{"restart " + path}, p.orders)
		require.Equal(t, "done", p.entries[0].Outcome)
	}
}

func TestOrderSaysWhyAllIsNotWell(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	p.after = func(*api.TreeNode) {
		n := p.find(&p.root, "takt/database/listener") // restarts with it
		n.Status, n.Detail = "suspended", "connection refused"
	}
	r := ask("POST", "/admin/tree/takt/database/pool/restart?timeout=0.05", why)
	require.Equal(t, 504, r.status)
	requireProblem(t, r, "takt/database/listener is still suspended (connection refused) after 50ms", "timeout")
	require.Contains(t, p.entries[0].Outcome, "is still suspended")

	p.after, p.err = nil, store.NewError(store.Conflict, "takt/heijunka/a is running")
	r = ask("POST", "/admin/tree/takt/heijunka/a/restart", why)
	require.Equal(t, 409, r.status, "the supervisor has the last word")
	require.Equal(t, "takt/heijunka/a is running", p.entries[1].Outcome)

	p.err = store.NewError(store.Unavailable, "takt/heijunka/a did not start: boom")
	r = ask("POST", "/admin/tree/takt/heijunka/a/restart", why)
	require.Equal(t, 200, r.status, "it was started again meanwhile")
}

func TestAuditThatIsAwayDoesNotStopAnOrder(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	p.away = true
	require.Equal(t, 200, ask("POST", "/admin/tree/takt/database/restart", why).status)
	p.mu.Lock()
	p.away = false
	p.mu.Unlock()
	p.concluded(t, 1)
	require.Len(t, p.entries, 1, "written once it was back")
	require.Equal(t, "done", p.entries[0].Outcome)
	require.Equal(t, "it is stuck", p.entries[0].Reason)
	require.False(t, p.entries[0].At.IsZero(), "the time is that of the order")
}

func TestHeartbeatSettings(t *testing.T) {
	t.Parallel()
	p, ask := operated(t)
	requireBody(t, `{"check_interval":60,"build_timeout":300,"worker_timeout":300}`, ask("GET", "/admin/heartbeat", ""))
	r := ask("PUT", "/admin/heartbeat", `{"build_timeout":90.5,"check_interval":2,"reason":"slow"}`)
	require.Equal(t, 200, r.status)
	requireBody(t, `{"check_interval":2,"build_timeout":90.5,"worker_timeout":300}`, r)
	require.Equal(t, 90500*time.Millisecond, p.timeouts.BuildTimeout)
	for _, body := range []string{`{}`, ``, `{"build_timeout":0}`, `{"build_timeout":-1e300}`, `{"build_timeout":"x"}`} {
		require.Equal(t, 400, ask("PUT", "/admin/heartbeat", body).status, body)
	}
	require.Len(t, p.entries, 3, "what can't be done is written down too, once it is an action")
	require.Equal(t, "done", p.entries[0].Outcome)
	require.Contains(t, string(p.entries[0].Detail), `"before":{"check_interval":60`)
	require.Equal(t, "build_timeout is too short", p.entries[1].Outcome)
}
