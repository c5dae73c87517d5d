package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/cli"
	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// traffic is submitters and polling workers on one controller. Workers keep what
// they get, so that every build is handed out once.
type traffic struct {
	c            *process.Controller
	source       []byte
	stop         func()
	mu           sync.Mutex
	acknowledged map[string]bool
	given        map[string]string // build to worker
	offline      bool              // connection errors are to be expected
	faults       []error
}

func startTraffic(t *testing.T, c *process.Controller) *traffic {
	t.Helper()
	tr := &traffic{
		c: c, source: takttest.Zip(t, map[string]string{"order.txt": "x"}),
		acknowledged: map[string]bool{}, given: map[string]string{},
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { tr.submit(ctx) })
	}
	for range 3 {
		w := takttest.Register(t, c, slots)
		wg.Go(func() { tr.poll(ctx, w) })
	}
	tr.stop = sync.OnceFunc(func() {
		cancel(context.Canceled)
		wg.Wait()
	})
	t.Cleanup(tr.stop)
	return tr
}

// submit submits at a pace at which verify can list all builds, even if the test
// takes minutes.
func (tr *traffic) submit(ctx context.Context) {
	for ctx.Err() == nil {
		offline := tr.mayFail()
		sub, err := tr.c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(tr.source)})
		tr.note(ctx, offline, err, func() { tr.acknowledged[sub.ID] = true })
		tr.pause(ctx)
	}
}

// slots is how many builds one worker may hold. Who has its hands full registers
// anew: the flow must not dry up however long the test takes.
const slots = 256

func (tr *traffic) poll(ctx context.Context, w *takttest.Worker) {
	lost := false // a reply, and maybe a build with it, which is then given again
	held := 0
	for ctx.Err() == nil {
		offline := tr.mayFail()
		if held == slots {
			reg, err := tr.c.Client.Register(ctx, api.Register{Name: "fake", Capabilities: fmt.Appendf(nil, `{"maxConcurrentBuilds":%d}`, slots)})
			tr.note(ctx, offline, err, func() { w, held = &takttest.Worker{ID: reg.ID, Token: reg.AccessToken}, 0 })
			continue
		}
		reply, err := tr.c.Client.Poll(ctx, client.Poll{Token: w.Token, Wait: time.Second})
		tr.note(ctx, offline, err, func() {
			w.Token = reply.AccessToken
			if reply.Job == nil {
				return
			}
			if other, twice := tr.given[reply.Job.ID]; twice && (other != w.ID || !lost) {
				tr.faults = append(tr.faults, fmt.Errorf("%s was given to %s and %s", reply.Job.ID, other, w.ID))
			}
			if tr.given[reply.Job.ID] == "" {
				held++
			}
			tr.given[reply.Job.ID] = w.ID
		})
		lost = err != nil
	}
}

// note keeps a success, or judges an error and waits a little.
// wasOffline is what mayFail returned when the request began.
func (tr *traffic) note(ctx context.Context, wasOffline bool, err error, success func()) {
	tr.mu.Lock()
	switch status := client.StatusOf(err); {
	case ctx.Err() != nil:
	case err == nil:
		success()
	case status == 503 && client.RetryAfter(err) > 0, status == 0 && (tr.offline || wasOffline):
	default:
		tr.faults = append(tr.faults, err)
	}
	tr.mu.Unlock()
	if err != nil {
		tr.pause(ctx)
	}
}

func (tr *traffic) pause(ctx context.Context) {
	select {
	case <-time.After(takttest.Tick):
	case <-ctx.Done():
	}
}

// flows waits until builds are accepted and handed out again.
func (tr *traffic) flows(t *testing.T) {
	t.Helper()
	count := func() (int, int) {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return len(tr.acknowledged), len(tr.given)
	}
	submitted, given := count()
	takttest.Eventually(t, "builds are accepted and handed out", func() bool {
		s, g := count()
		return s > submitted+5 && g > given+5
	})
}

// mayFail reports whether connections may fail.
func (tr *traffic) mayFail() bool {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.offline
}

// expectOffline says whether connections may fail.
func (tr *traffic) expectOffline(yes bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.offline = yes
}

// verify checks what is left at the end: every acknowledged build, and each in
// the hands of who got it.
func (tr *traffic) verify(t *testing.T) {
	t.Helper()
	tr.stop()
	require.NoError(t, errors.Join(tr.faults...))
	items, err := tr.c.Client.List(t.Context(), client.Filter{})
	require.NoError(t, err)
	have := map[string]api.BuildItem{}
	for _, item := range items {
		have[item.ID] = item
	}
	for id := range tr.acknowledged {
		require.Contains(t, have, id, "acknowledged")
	}
	for id, worker := range tr.given {
		require.Equal(t, string(store.Assigned), have[id].Status)
		require.Equal(t, worker, *have[id].WorkerID)
	}
}

// node finds a node by its path.
func node(n *api.TreeNode, path string) *api.TreeNode {
	if n.Path == path {
		return n
	}
	for i := range n.Children {
		if found := node(&n.Children[i], path); found != nil {
			return found
		}
	}
	return nil
}

// restartUnderLoad restarts path and checks that it was done as it should be.
func restartUnderLoad(t *testing.T, c *process.Controller, tr *traffic, path string) {
	t.Helper()
	tr.flows(t)
	ctx := t.Context()
	detached := path == "takt" || path == "takt/endpoint"
	tr.expectOffline(detached)
	before := time.Now()
	reply := takttest.Order(t, c, client.Order{Action: "restart", Path: path, Reason: "test of " + path, Timeout: 50 * time.Second})
	require.Equal(t, detached, reply.Plan != nil)
	if !detached {
		require.Equal(t, "running", reply.Node.Status)
		require.Equal(t, "shutdown: operator", reply.Node.LastExit)
	}

	last := concluded(t, c, path)
	require.Equal(t, "done", *last.Outcome)
	require.Equal(t, "restart", last.Action)
	require.Equal(t, "test of "+path, last.Reason)

	var root api.TreeNode
	var err error
	takttest.Eventually(t, "all is healthy", func() bool {
		root, err = c.Client.Tree(ctx, client.TreeOptions{})
		return err == nil && len(takttest.Trouble(&root)) == 0
	})
	up := time.Duration(node(&root, path).UptimeMS) * time.Millisecond
	require.Less(t, up, time.Since(before)+time.Second, "it is a new incarnation")
	if detached { // a connection of before may be closed for two seconds, just when it is used again
		takttest.Eventually(t, "connections of before are closed", func() bool {
			root, err = c.Client.Tree(ctx, client.TreeOptions{})
			return err == nil && node(&root, "takt/endpoint").UptimeMS > 3000
		})
	}
	tr.flows(t)
	tr.expectOffline(false)
	t.Logf("%s took %s", path, time.Since(before).Round(time.Millisecond))
}

// concluded waits until the newest audit entry is one of target and says how it
// ended.
func concluded(t *testing.T, c *process.Controller, target string) (last api.AuditEntry) {
	t.Helper()
	takttest.Eventually(t, "the audit says how it ended", func() bool {
		audit, err := c.Client.Audit(t.Context(), 1)
		if err != nil || len(audit.Entries) == 0 {
			return false
		}
		last = audit.Entries[0]
		return last.Target == target && last.Outcome != nil
	})
	return last
}

func TestRestartOfEachSubsystemUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	// All of the tree, in parts that are restarted side by side.
	for _, parts := range []string{"database", "telemetry pubsub orchestration", "heijunka jobs", "throttle deployments", "request_sup endpoint"} {
		t.Run(parts, func(t *testing.T) {
			t.Parallel()
			c := takttest.NewEnv(t).StartController("takt")
			tr := startTraffic(t, c)
			root, err := c.Client.Tree(t.Context(), client.TreeOptions{})
			require.NoError(t, err)
			var paths []string
			for i := range root.Children {
				known := slices.Contains(strings.Fields("database telemetry pubsub orchestration heijunka jobs throttle deployments request_sup endpoint"), root.Children[i].ID)
				require.True(t, known, root.Children[i].ID)
				if slices.Contains(strings.Fields(parts), root.Children[i].ID) {
					paths = append(paths, takttest.Paths(&root.Children[i])...)
				}
			}
			if parts == "database" {
				paths = append(paths, "takt")
			}
			for _, path := range paths {
				t.Run(path, func(t *testing.T) { restartUnderLoad(t, c, tr, path) })
			}
			tr.verify(t)
		})
	}
}

func TestOperatorStopsAndStarts(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	ctx := t.Context()
	order := client.Order{Action: "terminate", Path: "takt/orchestration/heartbeat_monitor", Reason: "experiment"}
	reply := takttest.Order(t, c, order)
	require.Equal(t, "terminated", reply.Node.Status)
	_, err := client.Call(ctx, c.Client, api.ShowTimeouts, api.None{})
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	order.Action = "restart"
	_, err = c.Client.Operate(ctx, order)
	require.Equal(t, store.Conflict, store.CodeOf(err))
	said, err := env.TryClient(c, "doctor")
	require.Error(t, err)
	require.Contains(t, said+err.Error(), "(takt start takt/orchestration/heartbeat_monitor --reason ...)")
	require.Contains(t, env.Client(c, "start", "orchestration/heartbeat_monitor", "--reason", "the experiment is over"), "running")

	w := takttest.Register(t, c, 1)
	parked := make(chan error, 1)
	go func() {
		_, err := c.Client.Poll(ctx, client.Poll{Token: w.Token, Wait: 30 * time.Second})
		parked <- err
	}()
	order = client.Order{Action: "restart", Path: "endpoint", Reason: "wakes the poll"}
	takttest.Eventually(t, "the plan shows the parked poll", func() bool {
		plan, err := c.Client.Plan(ctx, order)
		require.NoError(t, err)
		return plan.Requests == 1
	})
	takttest.Order(t, c, order)
	require.NoError(t, <-parked, "a parked poll is answered when the server restarts")
	concluded(t, c, "takt/endpoint")

	_, err = c.Client.Operate(ctx, client.Order{Action: "terminate", Path: "", Reason: "the end"})
	require.Equal(t, store.Conflict, store.CodeOf(err))
	takttest.Order(t, c, client.Order{Action: "terminate", Path: "", Reason: "the end", Force: true})
	<-c.Done()
	require.NoError(t, c.Failure(), "an end that was asked for")
}

// TestAControllerSaysWhatItIs looks for version and commit where operators do.
func TestAControllerSaysWhatItIs(t *testing.T) {
	t.Parallel()
	c := takttest.NewEnv(t).StartController("takt")
	health := takttest.Call(t, c, api.ShowHealth, api.None{})
	require.Equal(t, cli.Version(), health.Version)
	require.Equal(t, cli.Revision(), health.Commit)
	text, err := c.Client.Metrics(t.Context())
	require.NoError(t, err)
	require.Contains(t, text, fmt.Sprintf("takt_build_info{commit=%q,go=%q,version=%q} 1\n", cmp.Or(cli.Revision(), "unknown"), runtime.Version(), cli.Version()))
}
