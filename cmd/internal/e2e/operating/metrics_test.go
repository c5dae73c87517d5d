package operating

import (
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
	"takt/store"
)

// The life of builds and workers, as an operator sees it from outside: in the log one line
// for each step, in the scrape what dashboards and alerts ask for, and in neither what
// strangers may not read.
func TestALoadedControllerTellsWhatHappens(t *testing.T) {
	t.Parallel()
	env := takttest.NewThrottleEnv(t, hubspottest.Config{RollingLimit: -1})
	c := env.StartThrottle("takt", "TAKT_BUILD_TIMEOUT=3s", "TAKT_WORKER_TIMEOUT=3s", "TAKT_LOG=info")
	ctx := t.Context()

	victim := env.StartWorker(c, "victim-worker", "exec sleep 300")
	lost := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "lost"}))
	takttest.Eventually(t, "the victim builds", func() bool { return takttest.Status(t, c, lost).Status == string(store.Building) })
	waits, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(takttest.Zip(t, nil)), Priority: 5})
	require.NoError(t, err)
	_, err = c.Client.SetPriority(ctx, waits.ID, 7, "")
	require.NoError(t, err)
	victim.Kill()
	takttest.Eventually(t, "its attempt is lost", func() bool { return takttest.Status(t, c, lost).Status == string(store.Pending) })

	heir := env.StartWorker(c, "heir-worker", takttest.CopyOrder)
	takttest.Eventually(t, "the lost build completes", func() bool { return takttest.Status(t, c, lost).Status == string(store.Completed) })
	takttest.Download(t, c, lost)
	takttest.Eventually(t, "the other build fails", func() bool { return takttest.Status(t, c, waits.ID).Status == string(store.Failed) })
	require.NoError(t, heir.Stop(ctx, takttest.Patience))

	stuck := env.StartWorker(c, "stuck-worker", "exec sleep 300")
	cancelled := takttest.Submit(t, c, takttest.Zip(t, nil))
	takttest.Eventually(t, "it is built", func() bool { return takttest.Status(t, c, cancelled).Status == string(store.Building) })
	takttest.Cancel(t, c, cancelled)
	takttest.Eventually(t, "its worker is told", func() bool {
		n, err := c.Metric(ctx, "takt_build_cancel_seconds_count")
		return err == nil && n > 0
	})
	takttest.Order(t, c, client.Order{Path: "orchestration/janitor", Action: "restart", Reason: "a test"})

	env.Install(c, takttest.PerSecond(100), takttest.Portal)
	for range 3 { // HubSpot repeats itself
		require.True(t, env.Fire(ctx, c.URL, takttest.Portal, "the-callback"))
	}
	_, err = c.Client.Poll(ctx, client.Poll{WorkerID: "nobody", Token: "wrong"})
	require.Error(t, err)
	for range 9 {
		id := takttest.Submit(t, c, takttest.Zip(t, nil))
		takttest.Cancel(t, c, id)
	}
	takttest.Eventually(t, "cancelled builds are not shown as pending", func() bool {
		n, err := c.Metric(ctx, "takt_queue_pending_builds")
		return err == nil && n == 0
	})
	stuck.Kill()
	takttest.Call(t, c, api.CheckInvariants, api.None{})
	takttest.Eventually(t, "HubSpot was told", func() bool {
		n, err := c.Metric(ctx, "takt_throttle_actions_finished_total")
		return err == nil && n == 1
	})

	var text string
	takttest.Eventually(t, "the fleet is counted", func() bool { // tried every 15 s, and for a second only
		text, err = c.Client.Metrics(ctx)
		return err == nil && strings.Contains(text, "\ntakt_workers{")
	})
	secrets := []string{
		"victim-worker", "heir-worker", "stuck-worker", lost, waits.ID, cancelled, fmt.Sprint(takttest.Portal), "the-callback", "nobody", c.APIKey, c.AdminKey,
	}
	families := walk(t, text, secrets)
	missing := takttest.Watched(t)
	if disks, err := filepath.Glob("/sys/block/*/device"); err != nil || len(disks) == 0 {
		delete(missing, "takt_host_disk_read_bytes_total") // the system does not say, as in a container
		delete(missing, "takt_host_disk_written_bytes_total")
	}
	maps.DeleteFunc(missing, func(name, _ string) bool { return families[name] != nil })
	require.Empty(t, missing, "dashboards and alerts ask for what is there")
	for series, want := range map[string]float64{
		`takt_build_attempts_lost_total silent`: 1, `takt_builds_ended_total android completed`: 1, `takt_builds_ended_total ios failed`: 1,
		`takt_builds_ended_total android cancelled`: 10, `takt_build_wait_seconds ios 7`: 1, `takt_builds_submitted_total android`: 11,
		`takt_throttle_actions_received_total repeat`: 2, `takt_worker_tokens_refused_total`: 1,
	} {
		require.InDelta(t, want, valueOf(families, series), 0, series)
	}
	for _, m := range families["takt_database_statement_errors_total"].GetMetric() {
		require.NotContains(t, m.GetLabel()[0].GetValue(), "accept", "a repeated webhook is no error of PostgreSQL")
	}

	want := [][]string{
		{"build submitted", lost},
		{"build assigned", lost},
		{"build began", lost},
		{"build attempt lost", lost},
		{"build assigned", lost},
		{"build began", lost},
		{"result uploaded", lost},
		{"build ended", lost},
	}
	require.Equal(t, want, stepsOf(t, c.Output(), lost))
	for _, step := range []string{"worker registered", "worker offline", "worker gone"} {
		require.Contains(t, c.Output(), `"`+step+`"`)
	}
	require.NotContains(t, c.Output(), `"message":"request"`, "requests are for debug")
}

// stepsOf returns the steps of a build that a log tells, and checks what each says.
func stepsOf(t *testing.T, log, build string) (steps [][]string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var l struct {
			Level, Message, Build, Worker, Reason string
			Attempt                               int
			Took                                  string
		}
		if json.Unmarshal([]byte(line), &l) != nil || l.Build != build {
			continue
		}
		require.Equal(t, "info", l.Level, line)
		if l.Message != "build submitted" {
			require.NotEmpty(t, l.Worker, line)
			require.Positive(t, l.Attempt, line)
		}
		switch l.Message {
		case "build attempt lost":
			require.Equal(t, store.LostSilent, l.Reason)
		case "build assigned", "result uploaded", "build ended":
			took, err := time.ParseDuration(l.Took)
			require.NoError(t, err, line)
			require.Positive(t, took, line)
		}
		steps = append(steps, []string{l.Message, l.Build})
	}
	return steps
}

// walk checks a scrape and returns its families: what promtool says of names, help and
// types, base units, plain help, and labels with few values, none of which is a secret.
func walk(t *testing.T, text string, secrets []string) map[string]*dto.MetricFamily {
	t.Helper()
	takttest.Promtool(t, text, "check", "metrics")
	for _, secret := range secrets {
		require.NotContains(t, text, secret, "anybody may read the metrics")
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	word := regexp.MustCompile(`^[a-zA-Z0-9_/:*.+ -]{1,60}$`)
	for name, f := range families {
		if !strings.HasPrefix(name, "takt_") {
			continue // of the Go runtime
		}
		require.Regexp(t, `^[A-Z1].*[^ ]\.$`, f.GetHelp(), name)
		require.NotRegexp(t, `_(ms|millis|milliseconds|minutes|kb|mb|percent)(_|$)`, name, "base units")
		require.Equal(t, f.GetType() == dto.MetricType_COUNTER, strings.HasSuffix(name, "_total"), name)
		require.Less(t, len(f.GetMetric()), 1000, "%s has labels without end", name)
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				require.Regexp(t, word, l.GetValue(), "%s{%s}", name, l.GetName())
				require.NotRegexp(t, `[0-9A-Za-z_-]{21}$|^[0-9]{3,}$`, strings.ReplaceAll(l.GetValue(), "_", " "), "%s{%s} looks like an id", name, l.GetName())
			}
		}
	}
	return families
}

// valueOf returns the value of a series: "name label-value label-value", in the order of
// the labels' names. Of a histogram it is the count.
func valueOf(families map[string]*dto.MetricFamily, series string) (sum float64) {
	name, values, _ := strings.Cut(series, " ")
	for _, m := range families[name].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		if strings.Join(labels, " ") == values {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

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

// A fleet and its database get into some of the states of TestTheMostSevereProblemComesFirst, and
// the overview says so first.
func TestTheOverviewSaysFirstWhatIsWrong(t *testing.T) {
	t.Parallel()
	env := takttest.NewEnv(t)
	c := env.StartController("takt")
	o := overview{t, c, takttest.Session(t, c)}
	db := takttest.Connect(t, c)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	_, page := takttest.Page(t, o.browser, c.URL+"/overview")
	require.Contains(t, page, "No worker yet")
	killed := env.StartWorker(c, "killed", takttest.CopyOrder)
	stopped := env.StartWorker(c, "stopped", takttest.CopyOrder)
	o.says("", "2 workers online, nothing waiting")
	require.NoError(t, stopped.Stop(t.Context(), takttest.Patience)) // gracefully: it has left
	o.says("", "1 worker online, nothing waiting")
	killed.Kill()
	o.says("silent", "killed is silent.")
	exec(`UPDATE workers SET status = 'offline' WHERE id = $1`, takttest.Fleet(t, c)["killed"].ID) // after TAKT_WORKER_TIMEOUT
	o.says("offline", "killed is offline.")
	takttest.Submit(t, c, takttest.Zip(t, nil))
	o.says("stuck", "1 build can't start.")

	postgres := client.Order{Action: "terminate", Path: "database/postgres", Reason: "a test", Force: true}
	takttest.Order(t, c, postgres)
	o.says("database", "The database does not answer, because takt/database/postgres was terminated.")
	postgres.Action = "start"
	takttest.Order(t, c, postgres)
	o.says("stuck", "1 build can't start.")
	require.NotNil(t, takttest.Register(t, c, 1).Poll(t))
	db = takttest.Connect(t, c)
	takttest.Call(t, c, api.DeleteWorker, api.DeleteWorkerIn{WorkerPath: api.WorkerPath{ID: api.WorkerID(takttest.Fleet(t, c)["killed"].ID)}})
	o.says("", "1 worker online, nothing waiting")

	// Sessions that begin now have another clock.
	exec(`CREATE SCHEMA skew`)
	exec(`CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.clock_timestamp() + interval ''1 min'''`)
	exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = skew, public, pg_catalog', current_database()); END $$`)
	exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	o.says("clock", "The clocks of this controller and of the database are 1 min apart.")
}
