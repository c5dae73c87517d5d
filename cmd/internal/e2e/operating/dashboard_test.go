package operating

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
	"takt/store/storetest/needs"
)

// fileGate is a build command that goes on when a file called go appears: it says a
// line, and then what the file says.
func fileGate(dir string) string {
	return fmt.Sprintf(`echo "waiting for the gate"; while [ ! -e %[1]s/go ]; do sleep 0.05; done; cat %[1]s/go; cp order.txt "$TAKT_OUTPUT"`, dir)
}

// show is a controller, and a browser that is logged in.
func show(t *testing.T, settings ...string) (*takttest.Env, *process.Controller, *browser) {
	t.Helper()
	needs.Browser(t) // before anything else is started
	env := takttest.NewEnv(t)
	c := env.StartController("takt", settings...)
	b := newBrowser(t, c)
	b.login(c.AdminKey, "tester")
	return env, c, b
}

// What disturbs nobody shares a controller: the parts run one after the other, each in a tab
// of its own.
func TestDashboard(t *testing.T) {
	t.Parallel()
	env, c, b := show(t)
	b.do(chromedp.Navigate("about:blank")) // it follows nothing
	for _, part := range []struct {
		name string
		run  func(*testing.T, *takttest.Env, *process.Controller, *browser)
	}{
		{"empty pages are fit for everybody", emptyPagesAreFit}, // while there is nothing yet
		{"a build is followed from submit to download", buildIsFollowed},
		{"who types is not disturbed", typingIsLeftAlone},
		{"no mouse is needed", noMouseIsNeeded},
		{"a big log opens at once", bigLogOpensAtOnce},
		{"pages are fit for everybody", pagesAreFit}, // it logs out
	} {
		require.True(t, t.Run(part.name, func(t *testing.T) { part.run(t, env, c, b.tab(t, c)) }))
	}
}

// From the pages alone: a build waits and why, it is followed while it runs, its
// result is fetched; one that fails says why. No page is reloaded meanwhile.
func buildIsFollowed(t *testing.T, env *takttest.Env, c *process.Controller, b *browser) {
	t.Helper()
	b.open("/overview")
	b.sees(".empty", "No worker yet")
	require.Equal(t, "Overview · takt", b.text("head title"))
	b.open("/queue")
	b.sees("#live-waiting", "The queue is empty")

	id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "what was ordered"}))
	b.sees("#live-waiting", id[:8])
	b.sees("#p-"+id+" .why", "There is no worker for android")
	b.sees("head title", "(1 problem) Queue · takt")
	require.Contains(t, eval[string](b, `document.querySelector("link[rel=icon]").href`), "icon-bad.svg")
	require.True(t, eval[bool](b, `document.querySelector(".copy").checkVisibility()`))

	b.open("/builds/" + id)
	b.do(chromedp.Evaluate(`window.stays = true`, nil))
	b.sees("#live-head", "There is no worker for android")
	dir := t.TempDir()
	worker := env.StartWorker(c, "forge-one", fileGate(dir))
	b.sees("#live-steps", "Building")
	b.sees("#live-head", "forge-one")
	b.sees("#live-log", "waiting for the gate")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte("\x1b[32mgreen\x1b[0m light\n"), 0o600))
	b.sees("#live-log .a32", "green")
	b.sees("#live-head .badge", "completed")
	b.sees("#live-files", "Download the result")
	require.True(t, eval[bool](b, `window.stays`), "never reloaded")
	link := eval[string](b, `document.querySelector("#live-files a[download]").href`)
	require.Equal(t, "what was ordered", eval[string](b, fmt.Sprintf(`fetch(%q).then(r => r.text())`, link)))
	digest := eval[string](b, fmt.Sprintf(`fetch(%q).then(r => r.arrayBuffer()).then(d => crypto.subtle.digest("SHA-256", d)).then(d => [...new Uint8Array(d)].map(x => x.toString(16).padStart(2, "0")).join(""))`, link))
	b.sees("#live-files .digest", digest)

	failing := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"nothing.txt": "x"}))
	b.open("/builds")
	b.sees("#b-"+failing+" .badge", "failed")
	b.do(chromedp.Click("#b-"+failing+" th a", chromedp.ByQuery), chromedp.WaitVisible("#live-log", chromedp.ByQuery))
	b.sees("#live-head", "Error:")
	b.sees("#live-log", "cannot stat")
	b.submit(`form[action$="/retry"]`, map[string]string{"reason": "once more"})
	b.sees(".note.good", "submitted again")
	require.NotContains(t, b.text("h1"), failing, "the new one is shown")
	b.open("/audit")
	b.sees("#live-audit", "tester (admin)@127.0.0.1")
	b.sees("#live-audit", "once more")
	require.NoError(t, worker.Stop(t.Context(), takttest.Patience)) // what follows has no worker
	b.content()
}

// What changes while somebody fills in a form there is shown when they leave it.
func typingIsLeftAlone(t *testing.T, _ *takttest.Env, c *process.Controller, b *browser) {
	t.Helper()
	id := takttest.Submit(t, c, []byte("x"))
	b.open("/builds/" + id)
	b.do(chromedp.Focus("#priority-reason", chromedp.ByQuery), chromedp.KeyEvent("because"))
	takttest.Cancel(t, c, id)
	b.sees("#live-head .badge", "cancelled")
	require.Equal(t, "because", eval[string](b, `document.querySelector("#priority-reason").value`))
	b.do(chromedp.Evaluate(`document.querySelector("#priority-reason").select()`, nil), chromedp.KeyEvent(kb.Delete), chromedp.Evaluate(`document.activeElement.blur()`, nil))
	b.sees("#live-acts", "Build again")
	b.content()
}

// exhibits are one of each kind to show.
type exhibits struct{ build, worker, queue, deployment string }

// pages are all that there are.
func (x exhibits) pages() []string {
	return []string{
		"/overview", "/fleet", "/fleet/" + x.worker, "/queue", "/builds", "/builds/" + x.build, "/builds/" + x.build + "/log", "/tree",
		"/tree/order?action=restart&path=heijunka", "/heijunka", "/system", "/throttle", "/throttle?q=" + url.QueryEscape(x.queue),
		"/deployments", "/deployments/" + x.deployment, "/audit", "/notices", "/search?q=" + url.QueryEscape(hostile()[:60]), "/builds/nothing", "/",
	}
}

// hostile is text that must be shown as text.
func hostile() string {
	return `<script>alert(1)</script>"><img src=x onerror=alert(2)>` + "\u202Egpj.exe\u2066" + "\x1b]0;title\x07\x1b[2J" + strings.Repeat("long ", 2000)
}

// axe finds faults in the accessibility of pages.
func axe(t *testing.T) []byte {
	t.Helper()
	script, err := os.ReadFile(needs.Axe(t))
	require.NoError(t, err)
	return script
}

// fits checks that the page at path is complete as it is sent, without JavaScript, is no
// wider than a phone, has no violation of axe-core in light and dark, and shows text as text.
func (b *browser) fits(path string, axe []byte) {
	b.t.Helper()
	b.look("light", 360)
	b.open(path)
	sent := eval[[]string](b, `(document.scripts.length ? fetch(location, {headers: {Accept: "text/html"}}).then(r => r.text()).then(t => new DOMParser().parseFromString(t, "text/html")) : Promise.resolve(document)).then(d => [d.querySelector("main h1").textContent, d.title])`)
	require.NotEmpty(b.t, sent[0], path)
	require.Contains(b.t, sent[1], "takt", path)
	require.LessOrEqual(b.t, eval[int](b, `document.documentElement.scrollWidth`), 360, "%s fits a phone", path)
	require.Empty(b.t, eval[[]string](b, `[...document.querySelectorAll(".scroll tbody tr")].flatMap(row => [...row.cells].filter((cell, i) => cell.tagName === "TD" && cell.dataset.label !== row.closest("table").tHead.rows[0].cells[i].textContent).map(cell => row.id + ": " + cell.textContent))`), "%s: the labels of cards are the headings", path)
	require.Zero(b.t, eval[int](b, `document.querySelectorAll("main script, main img, main iframe, [onerror]").length`), path)
	b.do(chromedp.Evaluate(`document.querySelectorAll("details").forEach(d => { d.open = true })`, nil)) // with all that it hides
	b.accessible(axe, path)
}

// accessible checks that axe-core finds no fault in the page that is open. In the dark, only
// colours differ.
func (b *browser) accessible(axe []byte, what string) {
	b.t.Helper()
	if !eval[bool](b, `"axe" in window`) {
		b.do(chromedp.Evaluate(string(axe)+";0", nil))
	}
	for scheme, rules := range map[string]string{"light": `rules: {"target-size": {enabled: true}}`, "dark": `runOnly: ["color-contrast"]`} {
		b.look(scheme, 1280)
		found := eval[[]string](b, `axe.run({resultTypes: ["violations"], preload: false, `+rules+`}).then(r => r.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target + ": " + n.failureSummary)))`)
		require.Empty(b.t, found, "%s, %s", what, scheme)
	}
}

// A page says within seconds that its controller stands still or is gone, and that it is
// back. Its times are those of the browser's place.
func TestDashboardOutlivesItsController(t *testing.T) {
	t.Parallel()
	needs.Axe(t)
	env, c, b := show(t)
	b.do(emulation.SetTimezoneOverride("Asia/Kolkata"))
	b.open("/tree")
	b.do(chromedp.Evaluate(`window.stays = true`, nil))
	back := func(how string) {
		t.Helper()
		b.sees("#live-sign", "Live · updated")
		b.do(chromedp.Poll(`document.querySelector("#lost").textContent === ""`, nil, chromedp.WithPollingTimeout(0)))
		require.False(t, eval[bool](b, `document.body.matches(".lost")`), how)
	}
	back("at first")
	require.Equal(t, "05:30:00", eval[string](b, `(e => { e.innerHTML = '<time datetime="2026-01-01T00:00:00Z" data-form="hms">00:00:00 UTC</time>'; localize(e); return e.textContent })(document.createElement("p"))`))
	require.NotContains(t, b.text("#live-events"), "UTC")

	require.NoError(t, c.Signal(syscall.SIGSTOP))
	b.sees("#lost", "Connection to takt lost")
	b.sees("#live-sign", "Not live · updated")
	require.True(t, eval[bool](b, `getComputedStyle(document.querySelector("#live-well .note")).color === getComputedStyle(document.querySelector("small")).color`), "what is old is grey")
	require.True(t, eval[bool](b, `scrollTo(0, 1e6), document.querySelector("#lost").getBoundingClientRect().top >= 0`), "in view wherever one reads")
	b.accessible(axe(t), "without a connection")
	require.NoError(t, c.Signal(syscall.SIGCONT))
	back("after a pause")

	c.Kill()
	b.sees("#lost", "Connection to takt lost")
	env.StartController("takt", "TAKT_LISTEN="+strings.TrimPrefix(c.URL, "http://"))
	back("after a restart")
	require.True(t, eval[bool](b, `window.stays`), "never reloaded")
	b.content()
}

// While the database is away no page is called live. What is old is grey, what is new is not, and the
// outage is told once.
func TestDashboardIsNotLiveWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	needs.Axe(t)
	_, c, b := show(t)
	for _, path := range []string{"/builds", "/overview"} {
		b.open(path)
		b.sees("#live-sign", "Live · updated")
	}
	order := client.Order{Action: "terminate", Path: "database/postgres", Reason: "a test", Force: true}
	takttest.Order(t, c, order)
	shown := func(selector string) bool {
		return eval[bool](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].some(e => e.getClientRects().length > 0)`, selector))
	}
	grey := func(selector string) bool {
		return eval[bool](b, fmt.Sprintf(`(e => getComputedStyle(e).color === getComputedStyle(document.querySelector("footer")).color)(document.querySelector(%q))`, selector))
	}
	b.sees("#live-stale .note", "The lists and numbers were read")
	b.sees(".problems [data-kind=database]", "No accepted work is lost.")
	require.Equal(t, 1, strings.Count(b.text("main"), "No accepted work is lost."), "told once")
	require.False(t, grey(".problems [data-kind=database] b"), "it is news")
	require.True(t, grey("#live-builds h2"), "it is old")
	require.False(t, shown("#live-sign"), "it is not live, and lies over nothing")
	b.accessible(axe(t), "overview without its database")
	b.open("/builds")
	b.sees("#live-stale .note", "This page shows data from")
	require.False(t, shown("#live-sign"))
	order.Action = "start"
	takttest.Order(t, c, order)
	b.sees("#live-sign", "Live · updated")
	takttest.Eventually(t, "it is live again", func() bool { return shown("#live-sign") })
	b.content()
}

func emptyPagesAreFit(t *testing.T, _ *takttest.Env, _ *process.Controller, b *browser) {
	t.Helper()
	axe := axe(t)
	for _, empty := range []string{"/overview", "/fleet", "/queue", "/builds", "/throttle", "/deployments", "/audit", "/search?q=nothing", "/fleet?state=idle", "/nosuchpage", "/tree/order?action=start&path=heijunka"} {
		b.fits(empty, axe)
	}
	b.content()
}

func pagesAreFit(t *testing.T, _ *takttest.Env, c *process.Controller, b *browser) {
	t.Helper()
	axe := axe(t)
	x := populate(t, c)
	shows := map[string]string{
		"/builds/" + x.build: "#live-log", "/fleet/" + x.worker: "h1", "/throttle": ".error", "/deployments": "td", "/deployments/" + x.deployment: "#live-repos .error", "/audit": "#live-audit td", "/notices": "#live-notices .error",
	}
	for _, path := range x.pages() {
		b.fits(path, axe)
		if selector := shows[path]; selector != "" {
			b.sees(selector, "<script>alert(1)</script>")
			require.NotContains(t, b.text("main"), "\u202E", path)
			delete(shows, path)
		}
		if path == "/builds/"+x.build {
			require.Contains(t, b.text("#live-log"), "‹U+202E›")
			require.NotContains(t, b.text("#live-log"), "title", "escape sequences are left out")
		}
	}
	require.Empty(t, shows)
	// Cards are tables still for who does not see them.
	b.look("light", 360)
	b.open("/builds")
	var tree struct {
		Nodes []struct {
			Role struct {
				Value string `json:"value"`
			} `json:"role"`
		} `json:"nodes"`
	}
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		return cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree)
	}))
	roles := map[string]int{}
	for _, node := range tree.Nodes {
		roles[node.Role.Value]++
	}
	for _, role := range []string{"table", "row", "columnheader", "rowheader", "cell"} {
		require.Positive(t, roles[role], "%s of %v", role, roles)
	}
	b.do(chromedp.KeyEvent("?"), chromedp.WaitVisible("#keys[open]", chromedp.ByQuery))
	b.accessible(axe, "the keys")
	b.motion = "no-preference"
	b.open("/system")
	b.do(chromedp.Evaluate(`document.querySelector("h1").innerHTML += ' <span class="badge building">building</span>'`, nil))
	b.accessible(axe, "a pulsing badge")
	b.motion = "reduce"
	b.logOut()
	b.fits("/login", axe)
	b.content()
}

// populate makes one of each kind, as hostile as it can be.
func populate(t *testing.T, c *process.Controller) (x exhibits) {
	t.Helper()
	ctx := t.Context()
	reg, err := c.Client.Register(ctx, api.Register{Name: string([]rune(hostile())[:180]), Capabilities: []byte(`{"version":"<b>1</b>"}`)})
	require.NoError(t, err)
	sub, err := c.Client.Submit(ctx, client.Submit{
		Platform: store.IOS, Source: client.Bytes([]byte("x")), Labels: store.Labels{"note": `<script>alert(3)</script>"><img onerror=x>` + "\u202Efdp"},
	})
	require.NoError(t, err)
	poll, err := c.Client.Poll(ctx, client.Poll{Token: reg.AccessToken})
	require.NoError(t, err)
	require.NotNil(t, poll.Job)
	held := client.Held{BuildID: sub.ID, WorkerID: reg.ID}
	_, err = c.Client.PostLogs(ctx, held, []api.LogMessage{{Level: "error", Message: hostile()}, {Level: "warn", Message: "careful"}, {Level: "info", Message: "\x1b[1;31mred\x1b[0m"}})
	require.NoError(t, err)
	for _, cpu := range []string{"80", "95"} {
		sendTelemetry(t, c, held, `{"type":"cpu_snapshot","timestamp":"2026-01-01T00:00:00Z","data":{"cpu_percent":`+cpu+`,"memory_mb":4000,"disk_percent":40}}`)
	}
	takttest.Call(t, c, api.FailHeldBuild, api.FailBuildIn{Body: api.FailBuild{BuildID: sub.ID, Error: hostile()}})
	for range 3 {
		takttest.Submit(t, c, []byte("x"))
	}
	takttest.Order(t, c, client.Order{Action: "restart", Path: "heijunka/balancer", Reason: hostile()[:900]})
	x = exhibits{sub.ID, reg.ID, `queue:62515:<script>alert(1)</script>/"x':7:0`, "d-hostile"}
	db := takttest.Connect(t, c)
	for _, row := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (62515, 7, 100, 10, 'second')`, nil},
		// Paused, because nothing sends to HubSpot here.
		{`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index, paused_at, last_error) VALUES ($1, 62515, '3', 7, '0', now(), $2)`, []any{x.queue, hostile()}},
		{`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) SELECT 'queue:62515:' || i || ':7:0', 62515, i, 7, '0' FROM generate_series(1, 60) i`, nil},
		{`INSERT INTO action_executions (queue, portal_id, callback_id, expires_at) SELECT seq, portal_id, 'c', now() + interval '1 day' FROM throttle_queues WHERE id = $1`, []any{x.queue}},
		{
			`INSERT INTO deployments (id, request, state, credential_id, error, planned_at, finished_at) VALUES ($1, jsonb_build_object('source_org', $2::text, 'target_org', 'mirror'), 'failed', 'x', $2, now(), now())`,
			[]any{x.deployment, hostile()},
		},
		{`INSERT INTO deployments (id, request, state, credential_id, created_at) SELECT 'd' || i, '{"source_org":"from","target_org":"to"}', 'cancelled', 'x', now() - interval '1 day' FROM generate_series(1, 60) i`, nil},
		{
			`INSERT INTO deployment_repos (deployment_id, name, target, source, step, error, warning, refs, finished_at)
			SELECT $1, $2 || i, $2, '{}', CASE WHEN i % 9 = 0 THEN 'failed' ELSE 'done' END, CASE WHEN i % 9 = 0 THEN $2 END, $2, 3, now() FROM generate_series(1, 60) i`,
			[]any{x.deployment, hostile()[:1000]},
		},
		{
			`INSERT INTO notice_subscriptions (id, url, events, platforms, labels, github, secrets, disabled, created_by)
			VALUES ('sub_x', $1, '{build.failed}', ARRAY[$1], jsonb_build_object($1::text, $1::text), false, '', $1, $1)`, []any{hostile()},
		},
		{
			`INSERT INTO river_job (kind, queue, max_attempts, args, state, finalized_at, errors) VALUES
			('notice', 'notices', 11, '{"subscription": "sub_x", "body": {"type": "build.failed"}}', 'discarded', now(), ARRAY[jsonb_build_object('error', $1::text)])`, []any{hostile()},
		},
	} {
		_, err = db.Exec(ctx, row.sql, row.args...)
		require.NoError(t, err, row.sql)
	}
	return x
}

// sendTelemetry tells how the machine of a build's worker does, as host monitors do.
func sendTelemetry(t *testing.T, c *process.Controller, held client.Held, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL+"/api/builds/"+held.BuildID+"/telemetry", strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(api.HeaderAPIKey, c.APIKey)
	req.Header.Set(api.HeaderWorkerID, held.WorkerID)
	req.Header.Set(api.HeaderBuildID, held.BuildID)
	reply, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusOK, reply.StatusCode)
}

// Everything can be reached and done with the keyboard alone.
func noMouseIsNeeded(t *testing.T, _ *takttest.Env, c *process.Controller, b *browser) {
	t.Helper()
	id := takttest.Submit(t, c, []byte("x"))
	for _, sql := range []string{
		`INSERT INTO deployments (id, request, state, credential_id) VALUES ('d', '{}', 'cancelled', 'x')`,
		`INSERT INTO throttle_configs (portal_id, action_id, max_throughput, time_period, time_unit) VALUES (4, 7, 1, 1, 'second')`,
		`INSERT INTO throttle_queues (id, portal_id, workflow_id, action_id, index) VALUES ('queue:4:1:7:0', 4, 1, 7, '0')`,
	} {
		_, err := takttest.Connect(t, c).Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	b.open("/fleet")
	b.sees("nav", "Throttle") // it was used
	b.do(chromedp.KeyEvent("?"), chromedp.WaitVisible("#keys[open]", chromedp.ByQuery), chromedp.KeyEvent(kb.Escape), chromedp.WaitNotVisible("#keys", chromedp.ByQuery))
	for key, title := range map[string]string{"o": "Overview", "q": "Queue", "b": "Builds", "t": "Supervision tree", "h": "Heijunka", "s": "System", "r": "Throttle", "d": "Deployments", "a": "Audit", "f": "Fleet"} {
		b.do(chromedp.KeyEvent("g"), chromedp.KeyEvent(key))
		b.sees("h1", title)
		b.do(chromedp.Poll(`document.readyState === "complete"`, nil, chromedp.WithPollingTimeout(0)))
	}
	b.open("/builds")
	b.do(chromedp.KeyEvent("j"))
	require.Contains(t, eval[string](b, `document.activeElement.href`), id, "the first row")
	b.do(chromedp.KeyEvent("/"), chromedp.KeyEvent("nothing"), chromedp.KeyEvent(kb.Escape))
	require.NotEqual(t, "search", eval[string](b, `document.activeElement.id`))
	b.open("/builds")
	b.do(chromedp.KeyEvent("/"), chromedp.KeyEvent(id))
	require.Equal(t, id, eval[string](b, `document.querySelector("#search").value`))
	b.do(chromedp.KeyEvent("\r"))
	b.sees("h1", id)
	// Tab to the summary, open it, and through the form.
	tabTo := func(expression string) {
		for range 60 {
			b.do(chromedp.KeyEvent(kb.Tab))
			if eval[bool](b, `!!(document.activeElement.matches(`+"`"+expression+"`"+`))`) {
				return
			}
		}
		require.Fail(t, "not reached: "+expression)
	}
	tabTo("#live-acts summary")
	b.do(chromedp.KeyEvent("\r"))
	tabTo("#cancel-reason")
	b.do(chromedp.KeyEvent("by fake"))
	tabTo("#live-acts input[type=checkbox]")
	b.do(chromedp.KeyEvent(" "))
	tabTo("#live-acts button.danger")
	b.do(chromedp.KeyEvent("\r"))
	b.sees(".note.good", "The build is cancelled")
	b.sees("#live-head .badge", "cancelled")
	b.content()
}

// A log of 10 MB opens at its end at once and can be read while it grows, each of its lines
// is a link away, and each has an address. A hidden tab ends its stream.
func bigLogOpensAtOnce(t *testing.T, _ *takttest.Env, c *process.Controller, b *browser) {
	t.Helper()
	ctx := t.Context()
	reg, err := c.Client.Register(ctx, api.Register{Name: "chatty", Capabilities: []byte(`{}`)})
	require.NoError(t, err)
	id := takttest.Submit(t, c, []byte("x"))
	_, err = c.Client.Poll(ctx, client.Poll{Token: reg.AccessToken})
	require.NoError(t, err)
	held := client.Held{BuildID: id, WorkerID: reg.ID}
	const batches, lines = 25, 4000
	for batch := range batches {
		said := make([]api.LogMessage, lines)
		for i := range said {
			said[i] = api.LogMessage{Level: "info", Message: fmt.Sprintf("line %d %s", batch*lines+i, strings.Repeat("x", 90))}
		}
		_, err := c.Client.PostLogs(ctx, held, said)
		require.NoError(t, err)
	}
	b.open("/builds/" + id)
	require.Contains(t, b.text("#live-log"), fmt.Sprintf("line %d ", batches*lines-1))
	require.True(t, eval[bool](b, `(e => e.scrollTop > 0 && e.scrollHeight - e.scrollTop - e.clientHeight < 24)(document.querySelector("#live-log"))`), "at its end")
	require.Less(t, eval[int](b, `document.documentElement.outerHTML.length`), 500_000)
	b.sees("#live-sign", "Live · updated")
	oldest := eval[string](b, `document.querySelector("#live-log .l").id`)
	post := func(messages ...string) {
		t.Helper()
		var said []api.LogMessage
		for _, m := range messages {
			said = append(said, api.LogMessage{Level: "warn", Message: m})
		}
		_, err := c.Client.PostLogs(ctx, held, said)
		require.NoError(t, err)
	}
	atEnd := `(e => e.scrollHeight - e.scrollTop - e.clientHeight < 24)(document.querySelector("#live-log"))`
	post("one more")
	b.sees("#live-log .warn", "one more")
	require.Equal(t, 301, eval[int](b, `document.querySelectorAll("#live-log .l").length`))
	require.True(t, eval[bool](b, atEnd), "still at its end")

	b.do(chromedp.Evaluate(`document.querySelector("#live-log").scrollTop = 100`, nil))
	where := eval[float64](b, `document.querySelector("#live-log .l:nth-child(9)").getBoundingClientRect().top`)
	post(slices.Repeat([]string{"new"}, 214)...)
	b.sees("#log-new", "↓ 214 new lines")
	post("--- a part", "\x1b[4munderlined\x1b[0m", "the very last")
	b.sees("#log-new", "↓ 217 new lines")
	require.InDelta(t, where, eval[float64](b, `document.querySelector("#live-log .l:nth-child(9)").getBoundingClientRect().top`), 0.1, "nothing moves under the reader")
	require.Equal(t, oldest, eval[string](b, `document.querySelector("#live-log .l").id`))
	b.do(chromedp.Click("#log-new", chromedp.ByQuery), chromedp.WaitNotVisible("#log-new", chromedp.ByQuery))
	require.True(t, eval[bool](b, atEnd))
	require.Equal(t, fmt.Sprint("L", 2+batches*lines+218), eval[string](b, `document.querySelector("#live-log details[open] .l:last-child").id`), "numbers go on")
	require.Contains(t, b.text("#live-log details .a4"), "underlined")

	hide := func(hidden string) {
		b.do(chromedp.Evaluate(`Object.defineProperty(document, "hidden", {value: `+hidden+`, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, nil))
	}
	hide("true")
	for range 3 {
		post(slices.Repeat([]string{"missed"}, 10_000)...)
	}
	post("after a break")
	hide("false")
	b.sees("#live-log .warn:last-child", "after a break")
	require.Less(t, eval[int](b, `document.querySelectorAll("#live-log .l").length`), 2001, "lines far above the end have made way")
	b.do(chromedp.Click("#live-log .gap a", chromedp.ByQuery), chromedp.WaitVisible(".log.whole", chromedp.ByQuery))
	require.Equal(t, fmt.Sprint("L", 2+batches*lines+219), eval[string](b, `document.querySelector(".log .l").id`), "the first line that was missed")

	b.open("/builds/" + id + "/log?line=50000")
	b.sees("#L50000.hit", "line 49997 ")
	b.do(chromedp.Click("#L50002 .n", chromedp.ByQuery))
	b.sees("#L50002.hit", "line 49999 ")
	b.do(chromedp.Poll(`document.readyState === "complete"`, nil, chromedp.WithPollingTimeout(0)))
	b.do(chromedp.Evaluate(`document.querySelector("#L50004 .n").dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true, shiftKey: true}))`, nil))
	require.Equal(t, 3, eval[int](b, `document.querySelectorAll(".hit").length`))
	require.Equal(t, fmt.Sprintf("/builds/%s/log?line=50002&to=50004#L50002-L50004", id), eval[string](b, `location.pathname + location.search + location.hash`))

	streams := func() float64 {
		n, err := c.Metric(ctx, "takt_http_streams")
		require.NoError(t, err)
		return n
	}
	b.open("/queue")
	takttest.Eventually(t, "the page follows, and no other", func() bool { return streams() == 1 })
	hide("true")
	takttest.Eventually(t, "a hidden tab follows nothing", func() bool { return streams() == 0 })
	hide("false")
	takttest.Eventually(t, "and follows again", func() bool { return streams() == 1 })
	hide("true")
	cookies := b.logOut()
	hide("false")
	b.sees("h1", "Log in")
	b.do(network.SetCookies(cookies))
	b.content()
}

// TestDashboardScreenshots makes pictures of every page; see make screenshots.
func TestDashboardScreenshots(t *testing.T) {
	needs.Asked(t, "TAKT_SCREENSHOTS", "make screenshots")
	dir := os.Getenv("TAKT_SCREENSHOTS")
	t.Parallel()
	require.NoError(t, os.MkdirAll(dir, 0o750))
	env, c, b := show(t)
	x := populate(t, c)
	gate := t.TempDir()
	for _, name := range []string{"mac-mini-1", "mac-mini-2", "studio"} {
		env.StartWorker(c, name, `for i in 1 2 3 4 5 6; do echo "compiling part $i"; done; `+fileGate(gate))
	}
	open := filepath.Join(gate, "go")
	require.NoError(t, os.WriteFile(open, []byte("go\n"), 0o600))
	for range 3 { // so that their usual time is known
		id := takttest.Submit(t, c, takttest.Zip(t, map[string]string{"order.txt": "x"}))
		takttest.Eventually(t, "it is completed", func() bool {
			status, err := c.Client.Status(t.Context(), id, client.BuildAuth{})
			require.NoError(t, err)
			return status.Status == string(store.Completed)
		})
	}
	require.NoError(t, os.Remove(open))
	ours := map[string]bool{}
	for i := range 6 {
		sent, err := c.Client.Submit(t.Context(), client.Submit{
			Platform: store.Android, Source: client.Bytes(takttest.Zip(t, map[string]string{"order.txt": "x"})), Priority: 3 - i/2,
			Labels: store.Labels{"app": "shop", "branch": []string{"main", "checkout", "release/4.2"}[i%3], "commit": fmt.Sprintf("%07x", 0x3fa91c*(i+7)%0xfffffff)},
		})
		require.NoError(t, err)
		ours[sent.ID] = true
	}
	running := ""
	takttest.Eventually(t, "builds run", func() bool {
		list, err := c.Client.List(t.Context(), client.Filter{Status: "building"})
		require.NoError(t, err)
		n := 0
		for _, x := range list {
			if ours[x.ID] {
				running, n = x.ID, n+1
			}
		}
		return n == 3
	})
	b.open("/overview")
	b.sees("main", "3 busy")
	for i, path := range append(x.pages(), "/builds/"+running, "/builds/"+running+"/log") {
		short, _, _ := strings.Cut(path, "?")
		name := fmt.Sprintf("%02d-%s", i, strings.Trim(strings.NewReplacer("/", "-", x.build, "build", x.worker, "worker", running, "running").Replace(short), "-"))
		for _, look := range []struct {
			name, scheme string
			width        int64
		}{{"light", "light", 1280}, {"dark", "dark", 1280}, {"phone", "light", 360}, {"no-script", "light", 1280}} {
			b.look(look.scheme, look.width)
			b.scripts(look.name != "no-script")
			b.open(path)
			b.shoot(dir, name+"-"+look.name)
		}
		b.scripts(true)
	}
	takttest.Order(t, c, client.Order{Action: "terminate", Path: "database/postgres", Reason: "for a picture", Force: true})
	for _, path := range []string{"/overview", "/builds", "/tree", "/fleet"} { // the last was never read without a filter
		for _, look := range []struct {
			scheme string
			width  int64
		}{{"light", 1280}, {"dark", 1280}, {"light", 360}, {"dark", 360}} {
			b.look(look.scheme, look.width)
			b.open(path)
			b.sees(".note.bad", "")
			b.shoot(dir, fmt.Sprintf("away-%s-%s-%d", path[1:], look.scheme, look.width))
		}
	}
	takttest.Order(t, c, client.Order{Action: "start", Path: "database/postgres", Reason: "the picture is taken"})
	require.NoError(t, os.WriteFile(open, []byte("go\n"), 0o600))
}
