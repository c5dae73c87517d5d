package operating

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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
)

// evening is a controller with a fleet, and what all that show it have said of it.
type evening struct {
	*takttest.Env
	c    *process.Controller
	page func(path string) string
	db   *pgx.Conn
	// apart is since when two that should say the same do not, by what they differ in.
	apart map[string]time.Time
	// shown is how long after its cause each problem was shown.
	shown map[string]time.Duration
}

// drift is how long two may differ on a busy machine: pages show what is two seconds old. Metrics of
// workers are taken once a minute.
const drift = 20 * time.Second

// look asks everybody at once, and fails the test if two have differed for too long. It returns the
// texts of the problems by kind.
func (e *evening) look() map[string]string {
	ctx, found := e.T.Context(), map[string]string{}
	now := takttest.Call(e.T, e.c, api.ShowAttention, api.None{})
	overview := e.page("/overview")
	open := 0
	for _, p := range now.Problems {
		found[p.Kind] = p.Text
		if p.Acknowledged == nil {
			open++
		}
		e.same("the overview tells of "+p.Kind, strings.Contains(overview, `data-kind="`+p.Kind+`"`), true)
	}
	title := regexp.MustCompile(`<title>\((\d+) problem`).FindStringSubmatch(overview)
	e.same("problems in the title", title != nil && title[1] == strconv.Itoa(open) || title == nil && open == 0, true)

	states, metrics := map[string]int{}, e.scrape(ctx)
	for _, w := range takttest.Fleet(e.T, e.c) {
		states[w.State]++
	}
	list := map[string]int{}
	var shown []struct {
		State string `json:"state"`
	}
	require.NoError(e.T, json.Unmarshal([]byte(e.Client(e.c, "workers", "--json")), &shown))
	for _, w := range shown {
		list[w.State]++
	}
	for _, state := range store.WorkerStates() {
		e.same("takt workers and the API: "+state, list[state], states[state])
		if state != string(store.Idle) && state != string(store.Busy) { // which change all the time
			e.differ("the metric and the API: "+state, int(metrics[`takt_workers{state="`+state+`"}`]), states[state], time.Minute+drift)
		}
		if count := regexp.MustCompile(`>(\d+) ` + state + `</a>`).FindStringSubmatch(overview); count != nil {
			e.same("the overview and the API: "+state, count[1], strconv.Itoa(states[state]))
		}
	}
	var gone, draining, suspect, pending int
	require.NoError(e.T, e.db.QueryRow(ctx, `SELECT count(*) FILTER (WHERE status = 'offline'), count(*) FILTER (WHERE draining), count(*) FILTER (WHERE suspect IS NOT NULL) FROM workers`).
		Scan(&gone, &draining, &suspect))
	require.NoError(e.T, e.db.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'pending') FROM builds`).Scan(&pending))
	e.same("offline in the database", states["offline"]+states["left"], gone)
	e.same("draining in the database", states["draining"], draining)
	e.same("suspect in the database", states["suspect"], suspect)
	waiting, _ := strconv.Atoi(first(regexp.MustCompile(`>(\d+) waiting,`).FindStringSubmatch(overview)))
	e.same("waiting on the overview and in the database", waiting, pending)
	e.same("waiting in /health and in the database", takttest.Call(e.T, e.c, api.ShowHealth, api.None{}).Queue.Pending, pending)
	return found
}

func first(match []string) string {
	if match == nil {
		return "0"
	}
	return match[1]
}

// same fails the test if a and b have differed for too long.
func (e *evening) same(what string, a, b any) { e.differ(what, a, b, drift) }

func (e *evening) differ(what string, a, b any, most time.Duration) {
	if a == b {
		delete(e.apart, what)
		return
	}
	if _, ok := e.apart[what]; !ok {
		e.apart[what] = time.Now()
	}
	require.Less(e.T, time.Since(e.apart[what]), most, "%s: %v and %v", what, a, b)
}

func (e *evening) scrape(ctx context.Context) map[string]float64 {
	text, err := e.c.Client.Metrics(ctx)
	require.NoError(e.T, err)
	values := map[string]float64{}
	for line := range strings.SplitSeq(text, "\n") {
		if i := strings.LastIndex(line, " "); i > 0 && line[0] != '#' {
			values[line[:i]], _ = strconv.ParseFloat(line[i+1:], 64)
		}
	}
	return values
}

// until looks each second until all see a problem, and requires that it is said within a time after its cause.
func (e *evening) until(kind, text string, cause time.Time, within time.Duration) {
	e.T.Helper()
	for !strings.Contains(e.look()[kind], text) {
		require.Less(e.T, time.Since(cause), within+drift, "nobody says of %s: %s", kind, text) // a busy machine may take longer
		takttest.Pause(e.T.Context(), time.Second)
	}
	e.shown[kind+": "+text] = time.Since(cause)
	doctor, _ := e.TryClient(e.c, "doctor", "--poll-wait", "1s")
	require.Contains(e.T, doctor, text, "takt doctor says the same")
	require.Contains(e.T, e.Client(e.c, "attention"), text)
}

// submit submits a build of a branch, each with a source of its own.
func (e *evening) submit(n int, need string) string {
	b, err := e.c.Client.Submit(e.T.Context(), client.Submit{
		Platform: store.IOS, Source: client.Bytes(takttest.Zip(e.T, map[string]string{"order.txt": strconv.Itoa(n)})),
		Labels: map[string]string{"app": "shop", "branch": "main"}, Require: need,
	})
	require.NoError(e.T, err)
	return b.ID
}

// An evening with a fleet: each thing that an operator has to see happens, and all that show it say
// it in time, and the same.
func TestAnEvening(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	away := httptest.NewServer(nil)
	away.Close() // nobody listens there any more
	c := env.StartController("takt", "TAKT_NOTICE_ALLOW=127.0.0.1", "TAKT_BUILD_TIMEOUT=10m")
	db := takttest.Connect(t, c)
	session := takttest.Session(t, c)
	e := &evening{Env: env, c: c, db: db, apart: map[string]time.Time{}, shown: map[string]time.Duration{}, page: func(path string) string {
		_, body := takttest.Page(t, session, c.URL+path)
		return body
	}}
	begun, done := filepath.Join(env.Dir, "begun"), filepath.Join(env.Dir, "done")
	long := fmt.Sprintf("echo $TAKT_BUILD_ID >> %s; while [ ! -e %s ]; do sleep 0.2; done; cp order.txt $TAKT_OUTPUT", begun, done)
	require.Empty(t, e.look())

	// A machine that dies while it builds, and one that ends with a build.
	dies := env.StartWorker(c, "dies", long)
	e.submit(1, "")
	building := func(n int) func() bool {
		return func() bool {
			text, _ := os.ReadFile(begun) // not there before the first
			return strings.Count(string(text), "\n") >= n
		}
	}
	takttest.Eventually(t, "it builds", building(1))
	leaves := env.StartWorker(c, "leaves", long, "--concurrency", "2")
	e.submit(2, "")
	takttest.Eventually(t, "the other builds, too", building(2))
	takttest.Eventually(t, "it is known how often the first gives a sign of life", func() (known bool) {
		require.NoError(t, db.QueryRow(t.Context(), `SELECT sign_gap IS NOT NULL FROM builds ORDER BY seq LIMIT 1`).Scan(&known))
		return known
	})
	dies.Kill()
	died := time.Now()
	require.NoError(t, leaves.Signal(syscall.SIGTERM))
	left := time.Now()
	e.submit(3, "")
	e.until("leaving", "leaves is leaving, and 1 build waits.", left, 60*time.Second)

	// One that ruins every build, beside one that completes the like.
	sick := env.StartWorker(c, "sick", "exit 65")
	good := env.StartWorker(c, "good", "cp order.txt $TAKT_OUTPUT")
	fifth := time.Time{}
	for n := 4; fifth.IsZero(); n++ {
		e.submit(n, "")
		e.look()
		if takttest.Fleet(t, c)["sick"].Failed >= 5 && takttest.Fleet(t, c)["good"].Completed > 0 {
			fifth = time.Now()
		}
		require.Less(t, n, 200)
	}
	e.until("suspect", "sick is suspect: all", fifth, 15*time.Second)

	// A receiver that is gone, a process that was terminated, a worker that is critical.
	takttest.Call(t, c, api.CreateSubscription, api.CreateSubscriptionIn{URL: away.URL})
	id := e.submit(1000, "gpu")
	takttest.Cancel(t, c, id)
	e.until("notices", "not delivered to "+away.URL, time.Now(), 15*time.Second)
	takttest.Order(t, c, client.Order{Path: "orchestration/janitor", Action: "terminate", Reason: "an evening"})
	e.until("terminated", "janitor was terminated", time.Now(), 60*time.Second)
	script := filepath.Join(env.Dir, "build.sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexit 1\n"), 0o700))
	maimed := env.StartWorker(c, "lost-its-command", script)
	takttest.Eventually(t, "it is there", func() bool { return takttest.Fleet(t, c)["lost-its-command"].State == string(store.Idle) })
	require.NoError(t, os.Remove(script))
	require.NoError(t, maimed.Signal(syscall.SIGUSR1)) // it looks at itself
	e.until("critical", "lost-its-command is critical", time.Now(), 60*time.Second)
	e.submit(1001, "gpu")
	e.until("stuck", "There is no worker for ios with gpu.", time.Now(), 60*time.Second)

	// What somebody knows needs no attention, to anybody.
	known := len(e.look())
	env.Client(c, "attention", "acknowledge", "suspect", "--for", "1h", "--reason", "it is repaired tomorrow")
	require.Len(t, e.look(), known)
	require.Contains(t, env.Client(c, "attention"), "it is repaired tomorrow")

	e.until("silent", "dies is silent; 1 build runs on dies, lost soon after", died, 80*time.Second)
	require.NoError(t, os.WriteFile(done, nil, 0o600))
	require.NoError(t, sick.Stop(t.Context(), takttest.Patience))
	require.NoError(t, good.Stop(t.Context(), takttest.Patience))
	<-leaves.Done()
	for _, what := range slices.Sorted(maps.Keys(e.shown)) {
		t.Logf("%5.1f s  %s", e.shown[what].Seconds(), what)
	}
}
