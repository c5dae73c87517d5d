package recovery

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

// One controller's database is terminated by an operator; another controller
// has it as its external database. Both see an outage: suspended, no restart, and
// all resumes by itself.
func TestDatabaseThatIsAwayIsAnOutage(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	ctx := t.Context()
	owner := env.StartController("owner")
	second := env.StartController("second", owner.Shared()...)
	browser := takttest.Session(t, owner)
	takttest.Eventually(t, "the system's page counts both", func() bool {
		_, page := takttest.Page(t, browser, owner.URL+"/system")
		return strings.Contains(page, "Controllers that use this database</dt><dd>2</dd>")
	})
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	id := takttest.Submit(t, second, source)

	postgres := client.Order{Action: "terminate", Path: "database/postgres", Reason: "a storm", Force: true}
	reply, err := owner.Client.Operate(ctx, postgres)
	require.NoError(t, err, "its outcome can't be written now, and that stops nothing")
	require.Equal(t, "terminated", reply.Node.Status)
	for _, c := range []*process.Controller{owner, second} {
		takttest.Eventually(t, "the pool is suspended and says why", func() bool {
			pool, err := c.Client.Tree(ctx, client.TreeOptions{Path: "database/pool"})
			require.NoError(t, err)
			return pool.Status == "suspended" && pool.Detail != ""
		})
		_, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(source)})
		require.Equal(t, 503, client.StatusOf(err), "%v", err)
		require.Positive(t, client.RetryAfter(err))
	}

	postgres.Action = "start"
	reply, err = owner.Client.Operate(ctx, postgres)
	require.NoError(t, err, "its entry can't be written before, and that stops nothing")
	require.Equal(t, "running", reply.Node.Status)
	for _, c := range []*process.Controller{owner, second} {
		var root api.TreeNode
		takttest.Eventually(t, "all resumes by itself, without a restart", func() bool {
			root, err = c.Client.Tree(ctx, client.TreeOptions{})
			return err == nil && len(takttest.Trouble(&root)) == 0
		})
		takttest.Eventually(t, "the build is still there", func() bool {
			_, err := c.Client.Status(ctx, id, client.BuildAuth{})
			return err == nil
		})
		takttest.Submit(t, c, source)
	}
	takttest.Eventually(t, "the audit has been written down in the end", func() bool {
		audit, err := owner.Client.Audit(ctx, 0)
		if err != nil || len(audit.Entries) != 2 {
			return false
		}
		start, terminate := audit.Entries[0], audit.Entries[1]
		return start.Action == "start" && start.Outcome != nil && *start.Outcome == "done" &&
			terminate.Action == "terminate" && terminate.Outcome != nil && *terminate.Outcome == "done"
	})
}
