package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/hubspottest"
)

const (
	hookPath   = "/api/hubspot/action"
	publicName = "https://takt.example.com"
	hookPortal = int64(62515)
)

// hookSite is a site with a HubSpot.
type hookSite struct {
	*site
	hs   *hubspottest.HubSpot
	base string
	http *http.Client
}

func newHookSite(t *testing.T, cfg hubspottest.Config) *hookSite {
	t.Helper()
	hs := hubspottest.New(cfg)
	hs.AddPortal(hookPortal)
	base, stop, err := hs.Start(t.Context())
	require.NoError(t, err)
	c := &http.Client{Timeout: 30 * time.Second}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		stop()
	})
	return &hookSite{newSite(t), hs, base, c}
}

// throttled starts a controller whose claims end three seconds after it was killed.
func (s *hookSite) throttled(name string, more ...string) *process.Controller {
	s.t.Helper()
	return s.controller(name, append([]string{
		"TAKT_PUBLIC_URL=" + publicName, "TAKT_HUBSPOT_API_URL=" + s.base, "TAKT_HUBSPOT_AUTHORIZE_URL=" + s.base + "/oauth/authorize",
		"TAKT_HUBSPOT_CLIENT_ID=" + s.hs.Config().ClientID, "TAKT_HUBSPOT_CLIENT_SECRET=" + s.hs.Config().ClientSecret,
		"TAKT_HUBSPOT_TIMEOUT=2s",
	}, more...)...)
}

func (s *hookSite) install(c *process.Controller, most int) {
	s.t.Helper()
	require.NoError(s.t, s.hs.Install(s.t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", hookPortal))
	_, err := c.Client.SetThrottle(s.t.Context(), api.ThrottleConfig{PortalID: hookPortal, ActionID: 7, MaxThroughput: most, TimePeriod: 1, TimeUnit: "second"})
	require.NoError(s.t, err)
}

// fire sends a webhook and reports whether it was acknowledged.
func (s *hookSite) fire(ctx context.Context, url, id string) bool {
	status, _, err := s.hs.Fire(ctx, s.http, url+hookPath, publicName+hookPath, hubspottest.Webhook{
		PortalID: hookPortal, ActionID: 7, WorkflowID: int64(len(id) % 2), CallbackID: id,
	})
	return err == nil && status == http.StatusNoContent
}

// TestNoAcknowledgedActionIsLostWhenTaktIsKilled kills takt at random moments
// under 500 webhooks a second.
func TestNoAcknowledgedActionIsLostWhenTaktIsKilled(t *testing.T) {
	t.Parallel()
	const kills, perSecond, most = 3, 500, 400
	s := newHookSite(t, hubspottest.Config{RollingLimit: -1})
	c := s.throttled("takt")
	s.install(c, most)

	var mu sync.Mutex
	url, acknowledged := c.URL, map[string]bool{}
	ctx, stop := context.WithCancelCause(t.Context())
	var senders sync.WaitGroup
	tick := time.NewTicker(time.Second / perSecond)
	ids := make(chan int)
	for range 32 {
		senders.Go(func() {
			for i := range ids {
				id := fmt.Sprintf("ap-%d", i)
				mu.Lock()
				at := url
				mu.Unlock()
				if s.fire(t.Context(), at, id) {
					mu.Lock()
					acknowledged[id] = true
					mu.Unlock()
				}
			}
		})
	}
	senders.Go(func() {
		defer close(ids)
		for i := 0; ctx.Err() == nil; i++ {
			<-tick.C
			select {
			case ids <- i:
			default: // nobody is free: HubSpot would try later
			}
		}
	})
	for range kills {
		timer := time.NewTimer(500*time.Millisecond + rand.N(1500*time.Millisecond))
		<-timer.C
		c.Kill()
		c = s.throttled("takt")
		mu.Lock()
		url = c.URL
		mu.Unlock()
	}
	timer := time.NewTimer(time.Second)
	<-timer.C
	stop(nil)
	senders.Wait()
	tick.Stop()

	db, err := pgx.Connect(t.Context(), databaseURL(c))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	eventually(t, "nothing waits", func() bool {
		var waiting int
		err := db.QueryRow(t.Context(), `SELECT count(*) FROM action_executions WHERE state = 'waiting'`).Scan(&waiting)
		return err == nil && waiting == 0
	})
	completions := map[string]int{}
	perQueue := map[int][]hubspottest.Completion{}
	for _, done := range s.hs.Completions() {
		completions[done.CallbackID]++
		q := len(done.CallbackID) % 2
		perQueue[q] = append(perQueue[q], done)
	}
	require.Greater(t, len(acknowledged), 100, "webhooks were taken")
	missing := 0
	for id := range acknowledged {
		if completions[id] == 0 {
			missing++
		}
	}
	require.Zero(t, missing, "of %d acknowledged", len(acknowledged))
	for q, list := range perQueue {
		require.LessOrEqual(t, hubspottest.MostInAnyWindow(list, time.Second), most, "queue %d", q)
	}
	var rows, completed int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE state = 'completed') FROM action_executions`).Scan(&rows, &completed))
	require.Equal(t, rows, completed)
	require.Len(t, completions, rows, "each once, as HubSpot counts callbacks")
	t.Logf("%d acknowledged, %d distinct completed, %d in all", len(acknowledged), len(completions), len(s.hs.Completions()))
}

// TestNoTokenIsSeenWhereItDoesNotBelong has PostgreSQL log all that it is told.
func TestNoTokenIsSeenWhereItDoesNotBelong(t *testing.T) {
	t.Parallel()
	s := newHookSite(t, hubspottest.Config{RollingLimit: -1, Rotate: true})
	c := s.throttled("takt", "TAKT_LOG=debug")
	db := talkative(t, c)
	defer func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) }()
	s.install(c, 100)
	require.True(t, s.fire(t.Context(), c.URL, "first"))
	eventually(t, "it is completed", func() bool { return s.hs.Distinct() == 1 })
	before := s.hs.Tokens()
	s.hs.Revoke(hookPortal)
	require.True(t, s.fire(t.Context(), c.URL, "second"))
	eventually(t, "it is completed with a refreshed token", func() bool { return s.hs.Distinct() == 2 })
	require.Equal(t, 1, s.hs.Refreshes(hookPortal))
	require.False(t, s.fire(t.Context(), c.URL+"/api/oauth/callback?code=x&state=", "nobody"))
	found := secrets{"client secret": s.hs.Config().ClientSecret}
	for i, token := range append(before, s.hs.Tokens()...) {
		found[fmt.Sprintf("token %d", i)] = token
	}
	require.Greater(t, len(found), 3)
	found.requireAbsent(t, "takt's log, and PostgreSQL's", c.Output())
	found.requireAbsent(t, "the database", dump(t, db))
}

func TestOperatorsSteerTheThrottle(t *testing.T) {
	t.Parallel()
	s := newHookSite(t, hubspottest.Config{RollingLimit: -1})
	c := s.throttled("takt")
	require.NoError(t, s.hs.Install(t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", hookPortal))
	takt := func(args ...string) string {
		var out, errs bytes.Buffer
		root := newRootIn(func(name string) (string, bool) {
			v, ok := map[string]string{"TAKT_URL": c.URL, "TAKT_API_KEY": c.APIKey, "TAKT_ADMIN_KEY": c.AdminKey, "HOME": s.dir}[name]
			return v, ok
		})
		require.Zero(t, execute(t.Context(), root, append([]string{"throttle"}, args...), &out, &errs), "%v: %s", args, errs.String())
		return out.String()
	}
	require.Contains(t, takt("config", "62515", "7", "--max", "1", "--unit", "day"), "1 per day")
	for i := range 3 {
		require.True(t, s.fire(t.Context(), c.URL, fmt.Sprintf("x%d", i)))
	}
	eventually(t, "one is completed", func() bool { return s.hs.Distinct() == 1 })
	const queue = "queue:62515:0:7:0"
	require.Regexp(t, queue+` +2 `, takt("queues"))
	require.Contains(t, takt("pause", queue, "--reason", "a test"), "paused")
	require.Contains(t, takt("config", "62515", "7", "--max", "100"), "100 per second")
	require.NotContains(t, takt("resume", queue), "paused")
	eventually(t, "all are completed", func() bool { return s.hs.Distinct() == 3 })
	require.Contains(t, takt("redrive", queue), "0 actions")
	require.Contains(t, takt("rekey"), "0 portals")
	var list api.ThrottleConfigs
	require.NoError(t, json.Unmarshal([]byte(takt("config", "62515", "--json")), &list))
	require.Len(t, list.Configs, 1)
	require.Contains(t, takt("config", "62515", "7", "--delete"), "deleted")
	audit, err := c.Client.Audit(t.Context(), 10)
	require.NoError(t, err)
	var actions []string
	for _, e := range audit.Entries {
		actions = append(actions, e.Action)
	}
	require.Equal(t, []string{"rekey", "redrive", "resume", "pause"}, actions)
}

// TestThrottleDemo is `make demo-throttle`, with this binary.
func TestThrottleDemo(t *testing.T) {
	t.Parallel()
	p, err := process.Launch(t.TempDir(), "demo", environ(), "demo", "throttle")
	require.NoError(t, err)
	eventuallyIn(t, 3*time.Minute, "the demo ends", func() bool { return !p.Alive() })
	require.NoError(t, p.Failure())
	require.Contains(t, p.Output(), "200 acknowledged, 200 completed")
}

func eventuallyIn(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, limit, tick, what)
}
