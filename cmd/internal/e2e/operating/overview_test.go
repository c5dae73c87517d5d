package operating

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/storage/s3test"
	"takt/store"
)

// overview reads the page that comes first.
type overview struct {
	t       *testing.T
	c       *process.Controller
	browser *http.Client
}

var firstProblem = regexp.MustCompile(`(?s)<li class="note \w+" data-kind="(\w+)"><b>(.*?)</b>`)

// says waits until the overview's first problem is of a kind and has a text; "" is none.
func (o overview) says(kind, text string) {
	o.t.Helper()
	begun, got, page := time.Now(), "", ""
	for time.Since(begun) < takttest.Patience {
		_, page = takttest.Page(o.t, o.browser, o.c.URL+"/overview")
		got = ""
		if m := firstProblem.FindStringSubmatch(page); m != nil {
			got = m[1] + ": " + html.UnescapeString(m[2])
		} else if _, after, ok := strings.Cut(page, "All is well"); ok {
			got = "all is well" + after[:40]
		}
		if kind == "" && strings.HasPrefix(got, "all is well") && strings.Contains(got, text) || kind != "" && strings.HasPrefix(got, kind+": ") && strings.Contains(got, text) {
			o.t.Logf("after %s: %s", time.Since(begun).Round(100*time.Millisecond), got)
			require.Equal(o.t, kind != "", strings.Contains(page, "icon-bad.svg"))
			return
		}
		<-time.After(200 * time.Millisecond)
	}
	require.Fail(o.t, "the overview does not say it", "want %s: %s\ngot %s", kind, text, got)
}

// A fleet gets into each of these states, and the overview says so first.
func TestTheOverviewSaysFirstWhatIsWrong(t *testing.T) {
	t.Parallel()
	env, s3 := takttest.NewEnv(t), s3test.Start(t)
	c := env.StartController("takt", append(s3.Env(), "TAKT_STORAGE=dual", "TAKT_QUARANTINE=1/10")...)
	o := overview{t, c, takttest.Session(t, c)}
	db := takttest.Connect(t, c)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	source := takttest.Zip(t, map[string]string{"order.txt": "x"})
	begin := func(p store.Platform) string {
		t.Helper()
		sub, err := c.Client.Submit(t.Context(), client.Submit{Platform: p, Source: client.Bytes(source)})
		require.NoError(t, err)
		return sub.ID
	}
	remove := func(name string) {
		t.Helper()
		_, err := client.Call(t.Context(), c.Client, api.DeleteWorker, api.DeleteWorkerIn{WorkerPath: api.WorkerPath{ID: api.WorkerID(takttest.Fleet(t, c)[name].ID)}})
		require.NoError(t, err)
	}

	_, page := takttest.Page(t, o.browser, c.URL+"/overview")
	require.Contains(t, page, "No worker yet")
	killed := env.StartWorker(c, "killed", takttest.CopyOrder)
	frozen := env.StartWorker(c, "frozen", takttest.CopyOrder)
	stopped := env.StartWorker(c, "stopped", takttest.CopyOrder)
	o.says("", "3 workers online, nothing waiting")

	require.NoError(t, stopped.Stop(t.Context(), takttest.Patience)) // gracefully: it has left
	o.says("", "2 workers online, nothing waiting")

	require.NoError(t, syscall.Kill(frozen.PID(), syscall.SIGSTOP))
	exec(`UPDATE workers SET last_seen_at = now() - interval '2 min' WHERE id = $1`, takttest.Fleet(t, c)["frozen"].ID)
	o.says("silent", "frozen is silent.")
	require.NoError(t, syscall.Kill(frozen.PID(), syscall.SIGCONT))
	require.NoError(t, frozen.Stop(t.Context(), takttest.Patience))
	remove("frozen")
	killed.Kill()
	o.says("silent", "killed is silent.")
	exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, takttest.Fleet(t, c)["killed"].ID) // after TAKT_WORKER_TIMEOUT
	o.says("offline", "killed is offline.")
	remove("killed")

	id := begin(store.IOS)
	o.says("stuck", "1 build can't start. There is no worker for ios.")
	w := takttest.Register(t, c, 2)
	require.Equal(t, id, w.Poll(t).ID)
	o.says("", "1 worker online")
	sendTelemetry(t, c, client.Held{BuildID: id, WorkerID: w.ID}, `{"type":"cpu_snapshot","timestamp":"2026-01-01T00:00:00Z","data":{"disk_percent":97}}`)
	o.says("disk", "The disk of fake is 97 % full.")
	exec(`UPDATE worker_telemetry SET at = now() - interval '3 min'`)

	exec(`WITH n AS (INSERT INTO builds (id, platform, token_hash, state, started_at, completed_at)
		SELECT 'usual' || i, 'ios', '\x00', 'completed', now() - interval '61 min', now() - interval '1 h 1 s' FROM generate_series(1, 9) i RETURNING id, seq)
		INSERT INTO build_ids SELECT id, seq FROM n`)
	exec(`UPDATE builds SET started_at = now() - interval '2 h' WHERE id = $1`, id)
	o.says("overrun", "1 build is running for longer than 90 % of builds do.")
	_, err := c.Client.Cancel(t.Context(), id, "")
	require.NoError(t, err)

	_, err = client.Call(t.Context(), c.Client, api.DrainWorker, api.WorkerOrder{ID: api.WorkerID(w.ID)})
	require.NoError(t, err)
	o.says("draining", "No build could start. No worker gets builds: 1 draining.")
	begin(store.IOS)
	o.says("stuck", "1 build can't start. No worker for ios gets builds: 1 draining.")
	_, err = client.Call(t.Context(), c.Client, api.ResumeWorker, api.WorkerOrder{ID: api.WorkerID(w.ID)})
	require.NoError(t, err)
	job := w.Poll(t)
	_, err = c.Client.Upload(t.Context(), client.Upload{Held: client.Held{BuildID: job.ID, WorkerID: w.ID, Attempt: job.Attempt}, ErrorMessage: "no engine", Fault: store.FaultEngine})
	require.NoError(t, err)
	_, err = c.Client.Cancel(t.Context(), job.ID, "")
	require.NoError(t, err)
	o.says("quarantined", "fake is quarantined: 1 of the last 1 attempts")
	remove("fake")
	takttest.Register(t, c, 1)

	s3.Kill()
	kept := begin(store.IOS)
	o.says("s3", "S3 does not answer. Files are stored on this controller; 1 is still to be copied.")
	_, err = c.Client.Cancel(t.Context(), kept, "")
	require.NoError(t, err)
	s3.Restart()
	o.says("", "1 worker online, nothing waiting")

	postgres := client.Order{Action: "terminate", Path: "database/postgres", Reason: "a test", Force: true}
	_, err = c.Client.Operate(t.Context(), postgres)
	require.NoError(t, err)
	o.says("database", "The database does not answer. No accepted work is lost.")
	postgres.Action = "start"
	_, err = c.Client.Operate(t.Context(), postgres)
	require.NoError(t, err)
	o.says("", "1 worker online, nothing waiting")

	// Sessions that begin now have another clock.
	db = takttest.Connect(t, c)
	exec(`CREATE SCHEMA skew`)
	exec(`CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + interval ''1 min'''`)
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = skew, public, pg_catalog', current_database()); END $$`)
	exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	o.says("clock", "The clocks of this controller and of the database are 1 min apart.")
}
