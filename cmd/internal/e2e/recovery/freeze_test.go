package recovery

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
)

// A PostgreSQL that stands still for about as long as the build time-out takes no
// build from a worker that heartbeats, on the controller that runs it and on another one:
// who could not be heard was not silent.
func TestAFrozenDatabaseTakesNoBuildFromALiveWorker(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	timeouts := []string{"TAKT_BUILD_TIMEOUT=4s", "TAKT_CHECK_INTERVAL=100ms"}
	owner := env.StartController("owner", timeouts...)
	second := env.StartController("second", append(owner.Shared(), timeouts...)...)
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})

	ctx, stop := context.WithCancelCause(t.Context())
	var heartbeats sync.WaitGroup
	defer heartbeats.Wait()
	defer stop(nil)
	var held []client.Held
	for i := range 10 {
		c := owner
		if i%2 == 1 {
			c = second
		}
		takttest.Submit(t, c, source)
		w := takttest.Register(t, c, 1)
		job := w.Poll(t)
		h := client.Held{BuildID: job.ID, WorkerID: w.ID, Attempt: job.Attempt}
		held = append(held, h)
		heartbeats.Go(func() {
			for ctx.Err() == nil {
				_, _ = c.Client.Heartbeat(ctx, h, nil) // while PostgreSQL stands still it fails
				select {
				case <-ctx.Done():
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
	silentIsSwept := func() { // so silence counts again
		var id string
		once := client.Submit{Platform: store.Android, Source: client.Bytes(source), IdempotencyKey: client.NewIdempotencyKey()}
		takttest.Eventually(t, "a build is submitted", func() bool { // a connection may still be dialled
			sub, err := second.Client.Submit(t.Context(), once)
			id = sub.ID
			return err == nil
		})
		require.Equal(t, id, takttest.Register(t, second, 1).Poll(t).ID)
		takttest.Eventually(t, "a silent worker loses its build", func() bool {
			status, err := owner.Client.Status(t.Context(), id, client.BuildAuth{})
			return err == nil && status.Status == "pending"
		})
		takttest.Cancel(t, owner, id)
	}
	keepTheirBuilds := func() {
		for _, h := range held {
			var logs api.Logs
			takttest.Eventually(t, "the log is read", func() bool { // a connection may still be dialled
				var err error
				logs, err = owner.Client.Logs(t.Context(), h.BuildID, client.BuildAuth{}, client.LogsAfter{})
				return err == nil
			})
			for _, line := range logs.Logs {
				require.NotContains(t, line.Message, "No sign of life")
			}
		}
	}
	lengths := []time.Duration{3500, 6800, 4300, 4800, 5600}
	for _, length := range lengths[:needs.Repeat(2, len(lengths))] {
		silentIsSwept()
		keepTheirBuilds()
		frozen(t, postmaster(t, owner), length*time.Millisecond)
		for _, c := range []*process.Controller{owner, second} {
			takttest.Eventually(t, "the database answers "+c.Name, func() bool {
				_, err := c.Client.Logs(t.Context(), held[0].BuildID, client.BuildAuth{}, client.LogsAfter{})
				return err == nil
			})
		}
		keepTheirBuilds()
	}
	silentIsSwept()
	keepTheirBuilds()
}

// Another controller stands still inside transactions that hold the rows of two workers,
// which go on polling here. Other workers get their builds meanwhile, and those two when
// the controller goes on.
func TestAControllerFrozenInTransactionsHoldsUpNoOtherWorker(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	owner := env.StartController("owner")
	second := env.StartController("second", owner.Shared()...)
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	held := []*takttest.Worker{takttest.Register(t, second, 2), takttest.Register(t, second, 2)}
	var failed chan error
	inside := frozenInResults(t, owner, second, len(held), func() func(i int) {
		failed = make(chan error, len(held))
		failing := []string{takttest.Submit(t, second, source), takttest.Submit(t, second, source)}
		for i, w := range held { // a poll does not wait until another controller's build is known
			require.Equal(t, failing[i], w.Poll(t).ID)
		}
		return func(i int) {
			_, err := client.Call(t.Context(), second.Client, api.FailHeldBuild, api.FailBuildIn{Body: api.FailBuild{BuildID: failing[i], Error: "on purpose"}})
			failed <- err
		}
	})

	given := make(chan string, len(held))
	for _, w := range held {
		go func() {
			for t.Context().Err() == nil {
				reply, err := owner.Client.Poll(t.Context(), client.Poll{Token: w.Token})
				if err == nil && reply.Job != nil {
					given <- reply.Job.ID
					return
				}
			}
		}()
	}
	other := takttest.Register(t, owner, 10)
	slowest := time.Duration(0)
	for range 10 {
		id, begun := takttest.Submit(t, owner, source), time.Now()
		// It waits as workers do: a batch with a poll of those two may hold the build for a moment.
		reply, err := owner.Client.Poll(t.Context(), client.Poll{Token: other.Token, Wait: 10 * time.Second})
		require.NoError(t, err)
		require.NotNil(t, reply.Job)
		require.Equal(t, id, reply.Job.ID)
		other.Token = reply.AccessToken
		slowest = max(slowest, time.Since(begun))
	}
	t.Logf("the slowest poll of another worker took %s", slowest.Round(time.Millisecond))
	require.Equal(t, len(held), inside(), "the rows were locked all the time")
	require.NoError(t, syscall.Kill(second.PID(), syscall.SIGCONT))
	var want, got []string
	for range held {
		want = append(want, takttest.Submit(t, owner, source))
	}
	for range held {
		got = append(got, <-given)
		require.NoError(t, <-failed)
	}
	require.ElementsMatch(t, want, got)
}

// locked locks the table of workers, in which others may read, and calls send for each of n
// results. It returns when some of these wait, in as many transactions.
func locked(t *testing.T, c *process.Controller, n, transactions int, send func(i int)) (release func()) {
	t.Helper()
	lock := takttest.Connect(t, c)
	_, err := lock.Exec(t.Context(), `BEGIN; LOCK TABLE workers IN EXCLUSIVE MODE`)
	require.NoError(t, err)
	db := takttest.Connect(t, c)
	for i := range n {
		go send(i)
		takttest.Eventually(t, "results wait", func() bool {
			waiting := inStatement(t, db, "active", "try_enders")
			return waiting >= min(i+1, transactions)
		})
	}
	return func() {
		_, err = lock.Exec(t.Context(), `ROLLBACK`)
		require.NoError(t, err)
	}
}

// inStatement returns how many sessions in a state have sent a statement last.
func inStatement(t *testing.T, db *pgx.Conn, state, statement string) (n int) {
	t.Helper()
	err := db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE state = $1 AND query LIKE '/* ' || $2 || ' */%'`, state, statement).Scan(&n)
	require.NoError(t, err)
	return n
}

// frozenInResults stops c with SIGSTOP when it has locked the rows of n results, in as many
// transactions, and returns how many of these are still open. begin prepares results and returns
// what sends each. It is called again if c stood still before it had prepared its statements, once
// these results are recorded.
func frozenInResults(t *testing.T, owner, c *process.Controller, n int, begin func() (send func(i int))) (inside func() int) {
	t.Helper()
	db := takttest.Connect(t, owner)
	inside = func() int { return inStatement(t, db, "idle in transaction", "try_ends") }
	t.Cleanup(func() { _ = syscall.Kill(c.PID(), syscall.SIGCONT) })
	for {
		var sent sync.WaitGroup
		sent.Add(n)
		send := begin()
		release := locked(t, owner, n, n, func(i int) { defer sent.Done(); send(i) })
		require.NoError(t, syscall.Kill(c.PID(), syscall.SIGSTOP))
		release()
		takttest.Eventually(t, "the rows are locked", func() bool { return inside() == n || inStatement(t, db, "active", "try_enders") == 0 })
		if inside() == n {
			return inside
		}
		require.NoError(t, syscall.Kill(c.PID(), syscall.SIGCONT))
		sent.Wait()
	}
}

// takt is stopped while its PostgreSQL stands still, with requests in flight: it ends within
// the time that docs/operate.md names.
func TestTaktStopsWhileItsDatabaseStandsStill(t *testing.T) {
	t.Parallel()
	n, _ := takttest.NewPostgres(t)
	require.NoError(t, n.Start("-c", "fsync=off"))
	t.Cleanup(n.Stop)
	takttest.Answer(t, n, "SELECT 'up'")
	env := takttest.NewEnv(t)
	settings := append(takttest.SharedKeys(), "TAKT_DATABASE_URL="+n.URL())
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	for _, since := range []time.Duration{100 * time.Millisecond, 5 * time.Second} {
		c := env.StartController(fmt.Sprint("after ", since), settings...)
		w := takttest.Register(t, c, 1)
		takttest.Submit(t, c, source)
		job := w.Poll(t)
		n.Signal(syscall.SIGSTOP)
		ctx, stop := context.WithCancelCause(t.Context())
		var calls sync.WaitGroup
		for range 5 {
			calls.Go(func() {
				for ctx.Err() == nil {
					_, _ = c.Client.Heartbeat(ctx, client.Held{BuildID: job.ID, WorkerID: w.ID, Attempt: job.Attempt}, nil)
					_, _ = c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(source)})
					_, _ = client.Call(ctx, c.Client, api.ListBuilds, api.BuildFilter{Limit: 10})
				}
			})
		}
		<-time.After(since)
		begun := time.Now()
		require.NoError(t, c.Signal(syscall.SIGTERM))
		select {
		case <-c.Done():
		case <-time.After(90 * time.Second):
		}
		took := time.Since(begun)
		n.Signal(syscall.SIGCONT)
		stop(nil)
		calls.Wait()
		t.Logf("%s after PostgreSQL stood still takt stopped in %s", since, took.Round(time.Millisecond))
		require.NoError(t, c.Failure())
		require.Less(t, took, 20*time.Second)
	}
}

// frozen stops postmaster and all its children for length.
func frozen(t *testing.T, postmaster int, length time.Duration) {
	t.Helper()
	all := append(childrenOf(t, postmaster), postmaster)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
	}
	<-time.After(length)
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

func childrenOf(t *testing.T, parent int) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, after, _ := strings.Cut(string(stat), ") "); len(strings.Fields(after)) > 1 && strings.Fields(after)[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// postmaster returns the process id of c's embedded server.
func postmaster(t *testing.T, c *process.Controller) int {
	t.Helper()
	pid := 0
	takttest.Eventually(t, "the server has a pid file", func() bool {
		n, err := c.Postmaster()
		pid = n
		return err == nil
	})
	return pid
}

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
