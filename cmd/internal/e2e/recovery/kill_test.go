package recovery

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
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

func TestBuildOfAKilledWorkerCompletesElsewhere(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt", "TAKT_BUILD_TIMEOUT=3s", "TAKT_WORKER_TIMEOUT=3s")
	// The first worker never ends its build.
	victim := env.StartWorker(c, "victim", "echo waiting; exec sleep 300")
	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "precious"}))
	takttest.Eventually(t, "the victim builds", func() bool { return takttest.Status(t, c, id).Status == string(store.Building) })
	first := *takttest.Status(t, c, id).WorkerID
	victim.Kill()

	env.StartWorker(c, "heir", takttest.CopyOrder)
	takttest.Eventually(t, "the build completes", func() bool { return takttest.Status(t, c, id).Status == string(store.Completed) })

	st := takttest.Status(t, c, id)
	require.Equal(t, 2, st.Attempt)
	require.NotEqual(t, first, *st.WorkerID)
	require.Equal(t, "precious", takttest.Download(t, c, id))

	const at = `\S+Z? +`
	require.Regexp(t, `AT +WHAT +WORKER +DETAILS
`+at+`Submitted +- +android, priority 0
`+at+`Assigned +victim +after waiting .*
`+at+`Attempt 1 lost +- +no sign of life from worker victim
`+at+`Assigned +heir +attempt 2, after waiting .*
`+at+`Uploaded +- +8 B
`+at+`Completed`, env.Client(c, "explain", id))
	require.Equal(t, id+" does not wait: it is completed. takt explain "+id+" shows what happened", env.Client(c, "why", id))
}

func TestKilledControllerLosesNoAcknowledgedSubmit(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	acknowledged := map[string]string{}
	for round := range 3 {
		c := env.StartController("takt")
		var mu sync.Mutex
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancelCause(t.Context())
		for i := range 4 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					order := fmt.Sprintf("round %d, submitter %d, order %d", round, i, n)
					sub, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": order}))})
					if err != nil {
						return // the kill
					}
					mu.Lock()
					acknowledged[sub.ID] = order
					mu.Unlock()
				}
			})
		}
		takttest.Eventually(t, "some submits are acknowledged", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) >= 10*(round+1)
		})
		c.Kill()
		cancel(context.Canceled)
		wg.Wait()
	}
	c := env.StartController("takt", "TAKT_POLL_RATE=0")
	w := takttest.Register(t, c, len(acknowledged)+100)
	got := map[string]bool{}
	for {
		job := w.Poll(t)
		if job == nil {
			break
		}
		require.False(t, got[job.ID], "handed out twice")
		got[job.ID] = true
		if order, ok := acknowledged[job.ID]; ok {
			require.Contains(t, w.Source(t, job.ID), order)
		}
	}
	for id := range acknowledged {
		require.True(t, got[id], "acknowledged build %s is gone", id)
	}
}

func TestSecondControllerInOneDataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	p, err := env.Launch("intruder", []string{"TAKT_DATA_DIR=" + c.DataDir, "TAKT_LISTEN=127.0.0.1:0"}, "serve")
	require.NoError(t, err)
	<-p.Done()
	require.Error(t, p.Failure())
	require.Contains(t, p.Tail(), "used by another takt")
}

// notifyHandOuts makes the database notify of each hand-out once it is committed.
const notifyHandOuts = `
CREATE FUNCTION notify_hand_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_notify('handed', NEW.id); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER notify_hand_out AFTER UPDATE ON builds DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (OLD.state = 'pending' AND NEW.state = 'assigned') EXECUTE FUNCTION notify_hand_out();
LISTEN handed`

// A controller is killed right after it has committed hand-outs, and nobody reads
// its replies. Each worker shows the token that it has, to the next incarnation or to
// another controller, and gets its build.
func TestKilledBetweenCommitAndReply(t *testing.T) {
	t.Parallel()
	kills, fleet := needs.Repeat(6, 50), 4
	env := takttest.NewEnv(t)
	owner := env.StartController("owner", "TAKT_QUEUE_LIMIT=2000")
	conn, err := pgx.Connect(t.Context(), owner.DatabaseURL())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	_, err = conn.Exec(t.Context(), notifyHandOuts)
	require.NoError(t, err)
	start := func() *process.Controller {
		return env.StartController("victim", owner.Shared()...)
	}
	victim := start()
	workers := make([]*takttest.Worker, fleet)
	for i := range workers {
		workers[i] = takttest.Register(t, owner, 1+i%2)
	}
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	for round := range kills {
		for range fleet {
			takttest.Submit(t, owner, source)
		}
		var asked []net.Conn
		for _, w := range workers {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", victim.Address)
			require.NoError(t, err)
			_, err = fmt.Fprintf(c, "GET /api/workers/poll?wait=60 HTTP/1.1\r\nHost: takt\r\nX-API-Key: %s\r\nX-Worker-Token: %s\r\n\r\n", owner.APIKey, w.Token)
			require.NoError(t, err)
			asked = append(asked, c)
		}
		handed := map[string]bool{}
		for len(handed) < fleet {
			ctx, cancel := context.WithTimeoutCause(t.Context(), takttest.Patience, fmt.Errorf("round %d: %d of %d handed out", round, len(handed), fleet))
			n, err := conn.WaitForNotification(ctx)
			require.NoError(t, err, "%v", context.Cause(ctx))
			cancel()
			handed[n.Payload] = true
		}
		victim.Kill()
		for _, c := range asked {
			require.NoError(t, c.Close()) // unread
		}
		victim = start()
		next := []*process.Controller{victim, owner}[round%2]
		for _, w := range workers {
			reply, err := next.Client.Poll(t.Context(), client.Poll{Token: w.Token, Wait: 10 * time.Second})
			require.NoError(t, err, "round %d", round)
			require.NotNil(t, reply.Job, "round %d: the hand-out was lost", round)
			require.True(t, handed[reply.Job.ID], "round %d", round)
			require.Equal(t, 1, reply.Job.Attempt, "round %d: as the same attempt", round)
			delete(handed, reply.Job.ID)
			w.Token = reply.AccessToken
			takttest.Call(t, next, api.FailHeldBuild, api.FailBuildIn{Body: api.FailBuild{BuildID: reply.Job.ID, Error: "enough"}})
		}
		require.Empty(t, handed, "round %d", round)
	}
}

// A controller is killed right after it has committed hand-outs that come with the ends of builds,
// and several of one poll. What is repeated with the same token, at any controller, brings each
// build once more.
func TestKilledBetweenCommitAndReplyWithTheNextBuilds(t *testing.T) {
	t.Parallel()
	kills, fleet := needs.Repeat(3, 25), 3
	env := takttest.NewEnv(t)
	owner := env.StartController("owner", "TAKT_QUEUE_LIMIT=2000")
	conn, err := pgx.Connect(t.Context(), owner.DatabaseURL())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	_, err = conn.Exec(t.Context(), notifyHandOuts)
	require.NoError(t, err)
	start := func() *process.Controller { return env.StartController("victim", owner.Shared()...) }
	victim := start()
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	send := func(line, token, body string) net.Conn {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", victim.Address)
		require.NoError(t, err)
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: takt\r\nX-API-Key: %s\r\nX-Worker-Token: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			line, owner.APIKey, token, len(body), body)
		require.NoError(t, err)
		return c
	}
	// handOuts waits for n hand-outs, kills the victim and starts another one.
	handOuts := func(n int, asked ...net.Conn) *process.Controller {
		for range n {
			ctx, cancel := context.WithTimeoutCause(t.Context(), takttest.Patience, fmt.Errorf("fewer than %d handed out", n))
			_, err := conn.WaitForNotification(ctx)
			require.NoError(t, err, "%v", context.Cause(ctx))
			cancel()
		}
		victim.Kill()
		for _, c := range asked {
			require.NoError(t, c.Close()) // unread
		}
		victim = start()
		return victim
	}
	fails := func(c *process.Controller, build string, in api.FailBuildIn) api.Uploaded {
		in.Body = api.FailBuild{BuildID: build, Error: "enough"}
		return takttest.Call(t, c, api.FailHeldBuild, in)
	}

	workers, has := make([]*takttest.Worker, fleet), make([]string, fleet)
	for i := range workers {
		workers[i] = takttest.Register(t, owner, 1)
		takttest.Submit(t, owner, source)
		has[i] = workers[i].Poll(t).ID
	}
	require.NoError(t, conn.Ping(t.Context())) // reads the notifications
	for range fleet {
		_, err := conn.WaitForNotification(t.Context())
		require.NoError(t, err)
	}
	for round := range kills {
		var asked []net.Conn
		for i, w := range workers {
			takttest.Submit(t, victim, source) // which knows of it at once; the request does not wait
			asked = append(asked, send("/api/workers/fail?next=1", w.Token, `{"build_id":"`+has[i]+`"}`))
		}
		next := []*process.Controller{handOuts(fleet, asked...), owner}[round%2]
		got := map[string]bool{}
		for i, w := range workers {
			reply := fails(next, has[i], api.FailBuildIn{NextIn: api.NextIn{Next: "1", Token: w.Token}})
			require.NotNil(t, reply.Job, "round %d: the hand-out was lost", round)
			require.Equal(t, 1, reply.Job.Attempt)
			require.False(t, got[reply.Job.ID])
			got[reply.Job.ID] = true
			w.Token, has[i] = reply.AccessToken, reply.Job.ID
		}
	}
	for _, id := range has {
		fails(owner, id, api.FailBuildIn{})
	}

	wide, most := takttest.Register(t, owner, 4), 0
	for round := range kills {
		reply, err := victim.Client.Poll(t.Context(), client.Poll{Token: wide.Token, Wait: 2 * time.Second, Max: 4})
		require.NoError(t, err) // meanwhile the victim learns that nobody waits elsewhere
		require.Nil(t, reply.Job)
		wide.Token = reply.AccessToken
		for range 4 {
			takttest.Submit(t, victim, source)
		}
		next := []*process.Controller{handOuts(1, send("/api/workers/poll?wait=60&max=4", wide.Token, "")), owner}[round%2]
		rows, err := conn.Query(t.Context(), `SELECT id FROM builds WHERE worker_id = $1 AND state = 'assigned' ORDER BY handed`, wide.ID)
		require.NoError(t, err)
		held, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		most = max(most, len(held))
		for again := []string{}; len(again) < 4; { // the first reply has all of those
			reply, err := next.Client.Poll(t.Context(), client.Poll{Token: wide.Token, Max: 4})
			require.NoError(t, err)
			for _, j := range reply.All() {
				require.Equal(t, 1, j.Attempt)
				again = append(again, j.ID)
				fails(next, j.ID, api.FailBuildIn{})
			}
			require.Equal(t, held, again[:min(len(again), len(held))], "round %d: all of them, the oldest first", round)
			wide.Token = reply.AccessToken
		}
		for range 3 { // the other hand-outs
			_, err := conn.WaitForNotification(t.Context())
			require.NoError(t, err)
		}
	}
	require.Equal(t, 4, most, "of one poll, unless the machine is very slow")
}

// Two controllers of this release start at once on the database that release 0.1.0 left, where
// one build waits and mac-mini-3 is building another. That worker goes on with its build, by
// requests as it sent them to 0.1.0.
func TestUpgradeFrom010WithBuildsInFlight(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	ctx := t.Context()
	owner := env.StartController("owner") // of the server
	db, err := pgx.Connect(ctx, owner.DatabaseURL())
	require.NoError(t, err)
	defer db.Close(ctx) // a test's connection
	_, err = db.Exec(ctx, `CREATE DATABASE old`)
	require.NoError(t, err)
	cfg, err := pgx.ParseConfig(owner.DatabaseURL())
	require.NoError(t, err)
	cfg.Database = "old"
	old, err := pgx.ConnectConfig(ctx, cfg)
	require.NoError(t, err)
	defer old.Close(ctx) // a test's connection
	dump, err := os.ReadFile(takttest.File("migrations", "testdata", "0.1.0.sql"))
	require.NoError(t, err)
	_, err = old.Exec(ctx, string(dump))
	require.NoError(t, err)
	_, err = old.Exec(ctx, `DELETE FROM key_check; DELETE FROM oauth_tokens`) // the key of the dump is not kept
	require.NoError(t, err)

	settings := append(owner.Shared(), "TAKT_DATABASE_URL="+strings.Replace(owner.DatabaseURL(), "dbname=takt", "dbname=old", 1))
	type start struct {
		c   *process.Controller
		err error
	}
	other := make(chan start, 1)
	go func() {
		c, err := env.Controller(ctx, "second", settings...)
		other <- start{c, err}
	}()
	first := env.StartController("first", settings...)
	second := <-other
	require.NoError(t, second.err)
	defer func() { require.NoError(t, second.c.Stop(t.Context(), takttest.Patience)) }()

	const held, waiting = "GndwZlIdmYTwMg6ThepPW", "UozDfl6_u_jZivkpV9BgV"
	mac := client.Held{BuildID: held, WorkerID: "mac-mini-3"} // 0.1.0's workers could leave out the attempt
	heartbeat, err := first.Client.Heartbeat(ctx, mac, nil)
	require.NoError(t, err)
	require.Equal(t, "ok", heartbeat.Status)
	_, err = second.c.Client.PostLogs(ctx, mac, []api.LogMessage{{Level: "info", Message: "still compiling"}})
	require.NoError(t, err)

	w := takttest.Register(t, first, 1)
	job := w.Poll(t)
	require.NotNil(t, job)
	require.Equal(t, waiting, job.ID, "what waited is handed out")

	result := client.Bytes([]byte("an app"))
	_, err = second.c.Client.Upload(ctx, client.Upload{Held: mac, Success: true, Result: &result})
	require.NoError(t, err)
	require.Equal(t, "completed", takttest.Status(t, first, held).Status)
	logs, err := second.c.Client.Logs(ctx, held, client.BuildAuth{}, client.LogsAfter{})
	require.NoError(t, err)
	require.Contains(t, takttest.Messages(logs), "compiling", "a line of 0.1.0")
	require.Contains(t, takttest.Messages(logs), "still compiling")

	for _, c := range []*process.Controller{first, second.c} {
		require.Equal(t, "completed", takttest.Status(t, c, "GaK6oUkEJ7DjtFANIRQMJ").Status)
		takttest.RequireWell(t, c)
	}
}
