package services

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/cmd/internal/settings"
	"takt/cmd/internal/takttest"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
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
				health, err := client.Call(t.Context(), c.Client, api.ShowHealth, api.None{})
				require.NoError(t, err)
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
