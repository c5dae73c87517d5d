package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

func TestNew(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "localhost:3000", "ftp://host", "http://", "http://h/?q=1", "http://h/#f", "://"} {
		_, err := client.New(client.Config{BaseURL: bad})
		require.Error(t, err, bad)
	}
	require.Equal(t, "https://host/prefix", must(client.New(client.Config{BaseURL: "https://host/prefix/"}))(t).BaseURL())
	_, err := client.New(client.Config{BaseURL: "http://h", APIKey: "a\r\nX-Admin-Key: b"})
	require.ErrorContains(t, err, "API key")
	require.NotContains(t, err.Error(), "X-Admin")
}

func TestCallsOnTheWire(t *testing.T) {
	t.Parallel()
	held := client.Held{BuildID: "b1", WorkerID: "w1", Attempt: 2}
	half := 50.0
	tests := []struct {
		name  string
		reply string
		call  func(context.Context, *client.Client) (any, error)
		want  string
		head  map[string]string
	}{
		{
			"status with a build token", `{"id":"b1"}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Status(ctx, "b1", client.BuildAuth{Token: "tok"})
			}, "GET /api/builds/b1/status",
			map[string]string{"X-Api-Key": apiKey, "X-Build-Token": "tok", "X-Admin-Key": ""},
		},
		{
			"logs after a line", `{}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Logs(ctx, "b1", client.BuildAuth{}, client.LogsAfter{Seq: 9, Limit: 100})
			}, "GET /api/builds/b1/logs?after=9&limit=100",
			map[string]string{"X-Build-Token": ""},
		},
		{
			"post logs", `{"success":true,"count":1}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.PostLogs(ctx, held, []api.LogMessage{{Level: "info", Message: "hi"}})
			}, `POST /api/builds/b1/logs {"logs":[{"level":"info","message":"hi"}]}`,
			map[string]string{"X-Worker-Id": "w1", "X-Build-Id": "b1", "X-Build-Attempt": "2", "Content-Type": "application/json"},
		},
		{
			"heartbeat", `{"status":"ok"}`,
			func(ctx context.Context, c *client.Client) (any, error) { return c.Heartbeat(ctx, held, &half) }, `POST /api/builds/b1/heartbeat?worker_id=w1 {"progress":50}`,
			map[string]string{"X-Build-Attempt": "2"},
		},
		{
			"poll with a token", `{"job":null}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Poll(ctx, client.Poll{Token: "wt", WorkerID: "w1", Wait: 1500 * time.Millisecond, Active: []string{"a", "b"}})
			}, "POST /api/workers/poll?active=a%2Cb&wait=1",
			map[string]string{"X-Worker-Token": "wt"},
		},
		{
			"poll without a token, nothing active", `{"job":null}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Poll(ctx, client.Poll{WorkerID: "w1", Active: []string{}})
			}, "POST /api/workers/poll?active=&worker_id=w1",
			map[string]string{"X-Worker-Token": ""},
		},
		{
			"health carries no key", `{"status":"ok"}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return client.Call(ctx, c, api.ShowHealth, api.None{})
			},
			"GET /health",
			map[string]string{"X-Api-Key": "", "X-Admin-Key": ""},
		},
		{
			"tree carries the admin key only", `{}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Tree(ctx, client.TreeOptions{Path: "database/pool", All: true})
			}, "GET /admin/tree/database/pool?children=all",
			map[string]string{"X-Api-Key": "", "X-Admin-Key": "an-admin-key"},
		},
		{
			"restart waits as long as it says", `{}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Operate(ctx, client.Order{Action: "restart", Path: "database/pool", Reason: "why", Force: true, Timeout: 1500 * time.Millisecond})
			}, `POST /admin/tree/database/pool/restart?force=1&timeout=1.5 {"reason":"why"}`,
			map[string]string{"X-Api-Key": "", "X-Admin-Key": "an-admin-key"},
		},
		{
			"plan changes nothing", `{"action":"start"}`,
			func(ctx context.Context, c *client.Client) (any, error) {
				return c.Plan(ctx, client.Order{Action: "start", Path: "database"})
			}, `POST /admin/tree/database/start?dry_run=1 {}`,
			map[string]string{"X-Admin-Key": "an-admin-key"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got string
			c, rec := setup(t, func(w http.ResponseWriter, r *http.Request) {
				got = r.Method + " " + r.URL.RequestURI()
				if body := readAll(t, r.Body); body != "" {
					got += " " + body
				}
				reply(200, tt.reply)(w, r)
			})
			must(tt.call(t.Context(), c))(t)
			require.Equal(t, tt.want, got)
			for name, value := range tt.head {
				require.Equal(t, value, rec.last(t).Header.Get(name), name)
			}
		})
	}
}

func TestCallRefusesAnIDThatIsNoPathSegment(t *testing.T) {
	t.Parallel()
	c, rec := setup(t, reply(200, `{}`))
	for _, bad := range []string{"", "../x", "a/b", "a?b", "é"} {
		_, err := c.Status(t.Context(), bad, client.BuildAuth{})
		require.Equal(t, store.InvalidArgument, store.CodeOf(err), bad)
	}
	require.Zero(t, rec.count())
}

func TestCallKeepsAPathPrefix(t *testing.T) {
	t.Parallel()
	c, rec := setup(t, reply(200, `{}`), func(cfg *client.Config) { cfg.BaseURL += "/takt/" })
	must(client.Call(t.Context(), c, api.ShowHealth, api.None{}))(t)
	require.Equal(t, "/takt/health", rec.last(t).URL.Path)
}

func TestCallDoesNotCarryKeysToAnotherHost(t *testing.T) {
	t.Parallel()
	var leaked bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked = true }))
	defer other.Close()
	c, _ := setup(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	_, err := c.Cancel(t.Context(), "b1", "")
	require.Equal(t, http.StatusTemporaryRedirect, client.StatusOf(err))
	require.False(t, leaked)
}

func TestCallTimesOut(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	c, _ := setup(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}, func(cfg *client.Config) { cfg.CallTimeout = 20 * time.Millisecond })
	defer close(release)
	_, err := client.Call(t.Context(), c, api.ShowHealth, api.None{})
	require.Equal(t, store.Unavailable, store.CodeOf(err))
	require.ErrorContains(t, err, "no answer in time")
	require.True(t, client.Temporary(err))
}

func TestCallReturnsTheCallersOwnCause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	c, _ := setup(t, func(_ http.ResponseWriter, r *http.Request) { cancel(context.DeadlineExceeded); <-r.Context().Done() })
	_, err := client.Call(ctx, c, api.ShowHealth, api.None{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, client.Temporary(err))
}
