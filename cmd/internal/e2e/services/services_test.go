package services

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/settings"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/http/githubtest"
	"takt/store"
	"takt/store/storetest/needs"
)

// left is what a controller has of a service that it runs.
type left struct {
	page       string
	processes  []string
	metrics    *regexp.Regexp
	statements *regexp.Regexp // their names
}

// ofServices has each service's part.
var ofServices = map[string]left{
	api.ServiceBuilds: {
		"/queue",
		[]string{"orchestration/queue_manager", "orchestration/heartbeat_monitor"},
		regexp.MustCompile(`^takt_(queue|builds|build_(attempts|cancel|duration|wait)|workers?|storage|host_disk_free|http_polls)_`),
		statements("count_builds", "pulse", "waiting", "suspects", "fleet_states", "running", "owed", "rollup", "list_builds"),
	},
	api.ServiceThrottle: {
		"/throttle", []string{"throttle"}, regexp.MustCompile(`^takt_throttle_`), statements("river", "busy_queues", "backlog"),
	},
	api.ServiceDeployments: {
		"/deployments", []string{"deployments"}, regexp.MustCompile(`^takt_deployments_`), statements("claim_deployments", "renew_deployments", "list_deployments"),
	},
}

// statements matches the metrics of these SQL statements.
func statements(names ...string) *regexp.Regexp {
	return regexp.MustCompile(`takt_database_statement_duration_seconds_count\{statement="(` + strings.Join(names, "|") + `)"`)
}

func TestServicesCanBeLeftOut(t *testing.T) {
	t.Parallel()
	for _, only := range settings.ServiceNames() {
		t.Run(only, func(t *testing.T) {
			t.Parallel()
			c := takttest.NewEnv(t).StartController("takt", "TAKT_SERVICES="+only, "TAKT_HUBSPOT_TIMEOUT=20s")
			root, err := c.Client.Tree(t.Context(), client.TreeOptions{})
			require.NoError(t, err)
			tree := takttest.Paths(&root)
			browser := takttest.Session(t, c)
			for name, of := range ofServices {
				runs := name == only
				for _, path := range of.processes {
					require.Equal(t, runs, slices.Contains(tree, "takt/"+path), path)
				}
				code, _ := takttest.Page(t, browser, c.URL+of.page)
				require.Equal(t, map[bool]int{true: http.StatusOK, false: http.StatusNotFound}[runs], code, of.page)
				_, page := takttest.Page(t, browser, c.URL+"/tree")
				require.Equal(t, runs, strings.Contains(page, `href="`+of.page+`"`), "%s is in the navigation", of.page)
			}
			for _, q := range []string{"", "name", "V1StGXR8_Z5jdHi6B-myT", "queue:1:2:3:0"} {
				if only == api.ServiceThrottle && strings.HasPrefix(q, "queue") {
					continue // the page of queues says that it has none
				}
				code, page := takttest.Page(t, browser, c.URL+"/search?q="+q)
				require.Equal(t, http.StatusOK, code, "searching for %q: %s", q, page)
			}
			for _, r := range api.Routes() {
				if r.Service != "" && r.Service != only {
					requireUnknown(t, c, r)
				}
			}
			if only != api.ServiceBuilds {
				health := takttest.Call(t, c, api.ShowHealth, api.None{})
				require.Zero(t, health.Queue)
				_, stats := takttest.Page(t, browser, c.URL+"/api/stats")
				require.NotRegexp(t, `[1-9]`, stats)
			}
			works(t, c, only)

			takttest.Eventually(t, "the service's background work, and 3 s for that of the others", func() bool {
				root, err := c.Client.Tree(t.Context(), client.TreeOptions{})
				text, scraped := c.Client.Metrics(t.Context())
				return err == nil && scraped == nil && root.UptimeMS > 3000 && ofServices[only].statements.MatchString(text)
			})
			text, err := c.Client.Metrics(t.Context())
			require.NoError(t, err)
			for line := range strings.Lines(text) {
				for name, of := range ofServices {
					if name != only && !strings.HasPrefix(line, "#") {
						require.NotRegexp(t, of.metrics, line)
						require.NotRegexp(t, of.statements, line)
					}
				}
			}
			require.Regexp(t, "(?m)"+ofServices[only].metrics.String(), text)
			warned := strings.Contains(c.Output(), "ignoring settings of services that are left out")
			require.Equal(t, only != api.ServiceThrottle, warned)
			require.NoError(t, c.Stop(t.Context(), takttest.Patience))
		})
	}
}

// works uses the service.
func works(t *testing.T, c *process.Controller, service string) {
	t.Helper()
	var err error
	switch service {
	case api.ServiceBuilds:
		id := takttest.Submit(t, c, takttest.Zip(t, nil))
		require.Equal(t, string(store.Pending), takttest.Status(t, c, id).Status)
	case api.ServiceThrottle:
		_, err = client.Call(t.Context(), c.Client, api.SetRate, api.SetRateIn{ThrottleConfig: api.ThrottleConfig{PortalID: 1, ActionID: 1, MaxThroughput: 1, TimePeriod: 1, TimeUnit: "second"}})
	default:
		_, err = c.Client.Deployments(t.Context(), 1)
	}
	require.NoError(t, err)
}

// requireUnknown checks that a route is answered as one that never existed.
func requireUnknown(t *testing.T, c *process.Controller, r api.Route) {
	t.Helper()
	method, _, _ := strings.Cut(r.Method, " ")
	req, err := http.NewRequestWithContext(t.Context(), method, c.URL+regexp.MustCompile(`:\w+`).ReplaceAllString(r.Path, "1"), strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header.Set("X-Api-Key", c.APIKey)
	req.Header.Set("X-Admin-Key", c.AdminKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	require.Equal(t, http.StatusNotFound, resp.StatusCode, "%s %s", method, r.Path)
	require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), "%s %s", method, r.Path)
}

// takt is killed ten times while it copies two hundred repositories. In the end
// every branch and tag is there, each repository once, and nothing on the disk. The
// credential was in no argument and no log.
func TestDeploymentSurvivesKills(t *testing.T) {
	t.Parallel()
	repos, kills := needs.Repeat(80, 200), needs.Repeat(5, 10)
	env := takttest.NewEnv(t)
	forge, settings := takttest.NewForge(t, repos)
	gate := newPushGate()
	forge.Intercept(gate.intercept)
	settings = append(settings, "TAKT_LOG=debug,json")
	c := env.StartController("controller", settings...)
	d, err := c.Client.Deploy(t.Context(), api.DeploymentRequest{DeploymentRequest: store.DeploymentRequest{SourceOrg: "from", TargetOrg: "to"}, Token: githubtest.Token})
	require.NoError(t, err)
	for i := range kills {
		gate.open((i + 1) * repos / (kills + 2)) // so that it can't be done before the last of them
		takttest.Eventually(t, "it comes on", func() bool {
			requireInNoCommand(t, githubtest.Token)
			d, err = c.Client.Deployment(t.Context(), d.ID, false)
			require.NoError(t, err)
			return d.Counts.Total-d.Counts.Left() > i*repos/(kills+2)
		})
		require.False(t, d.Ended(), "it is still under way")
		c.Kill()
		require.NotContains(t, c.Output(), githubtest.Token)
		c = env.StartController("controller", settings...)
	}
	gate.open(repos)
	takttest.Eventually(t, "it is done", func() bool {
		d, err = c.Client.Deployment(t.Context(), d.ID, true)
		require.NoError(t, err)
		return d.Ended()
	})
	require.NotContains(t, fmt.Sprintf("%+v", d), githubtest.Token)
	for _, r := range d.Repos {
		require.Nil(t, r.Error, "%+v", r)
	}
	require.Equal(t, "done", d.State)
	require.Equal(t, repos, d.Counts.Done, "%+v", d.Counts)
	require.Equal(t, forge.Names("from"), forge.Names("to"), "no other copies")
	attempts := 0
	for _, r := range d.Repos {
		require.Equal(t, githubtest.RefsOf(t, forge.Dir("from", r.Name)), githubtest.RefsOf(t, forge.Dir("to", r.Name)), r.Name)
		made, _ := forge.Find("to", r.Name)
		require.Equal(t, "about "+r.Name, made.Description)
		attempts += r.Attempts
	}
	require.Greater(t, attempts, repos, "some were interrupted")
	left, err := os.ReadDir(filepath.Join(c.DataDir, "deployments"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// requireInNoCommand looks at the arguments of every process.
func requireInNoCommand(t *testing.T, secret string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, f := range files {
		args, _ := os.ReadFile(f) // of one that is gone there is nothing
		require.NotContains(t, string(args), secret)
	}
}

// pushGate lets pushes into so many repositories through; others wait.
type pushGate struct {
	mu    sync.Mutex
	let   map[string]bool
	most  int
	moved chan struct{} // closed when most grows
}

func newPushGate() *pushGate { return &pushGate{let: map[string]bool{}, moved: make(chan struct{})} }

func (g *pushGate) open(most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.most = most
	close(g.moved)
	g.moved = make(chan struct{})
}

func (g *pushGate) enter(repo string) (ok bool, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.let[repo] && len(g.let) < g.most {
		g.let[repo] = true
	}
	return g.let[repo], g.moved
}

func (g *pushGate) intercept(_ http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
		return false
	}
	for {
		ok, moved := g.enter(r.URL.Path)
		if ok {
			return false
		}
		select {
		case <-moved:
		case <-r.Context().Done():
			return true
		}
	}
}
