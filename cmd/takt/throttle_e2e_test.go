package main

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
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

func newHookSite(t *testing.T, cfg hubspottest.Config, portals ...int64) *hookSite {
	t.Helper()
	hs := hubspottest.New(cfg)
	hs.AddPortal(append(portals, hookPortal)...)
	base, stop := hs.Start()
	c := &http.Client{Timeout: 30 * time.Second}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		stop()
	})
	return &hookSite{newSite(t), hs, base, c}
}

// throttled starts a controller whose claims end 4.5 seconds after they were made.
func (s *hookSite) throttled(name string, more ...string) *process.Controller {
	s.t.Helper()
	return s.controller(name, slices.Concat(s.hs.Env(s.base), []string{"TAKT_PUBLIC_URL=" + publicName, "TAKT_HUBSPOT_TIMEOUT=3s"}, more)...)
}

// guest starts a second controller on the database of owner.
func (s *hookSite) guest(owner *process.Controller, more ...string) *process.Controller {
	s.t.Helper()
	return s.throttled("guest", append(owner.Shared(), more...)...)
}

// install has portals install the app and gives their action 7 a rate.
func (s *hookSite) install(c *process.Controller, rate api.ThrottleConfig, portals ...int64) {
	s.t.Helper()
	rate.ActionID = 7
	for _, rate.PortalID = range portals {
		require.NoError(s.t, s.hs.Install(s.t.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", rate.PortalID))
		_, err := client.Call(s.t.Context(), c.Client, api.SetRate, api.SetRateIn{ThrottleConfig: rate})
		require.NoError(s.t, err)
	}
}

func perSecond(most int) api.ThrottleConfig {
	return api.ThrottleConfig{MaxThroughput: most, TimePeriod: 1, TimeUnit: "second"}
}

// fire sends a webhook and reports whether it was acknowledged.
func (s *hookSite) fire(ctx context.Context, url string, portal int64, id string) bool {
	status, _, err := s.hs.Fire(ctx, s.http, url+hookPath, publicName+hookPath, hubspottest.Webhook{PortalID: portal, ActionID: 7, CallbackID: id})
	return err == nil && status == http.StatusNoContent
}

// waiting returns how many actions wait, -1 if that cannot be seen.
func waiting(ctx context.Context, db *pgx.Conn) (n int) {
	if err := db.QueryRow(ctx, `SELECT count(*) FROM action_executions WHERE state = 'waiting'`).Scan(&n); err != nil {
		return -1
	}
	return n
}

func connect(t *testing.T, c *process.Controller) *pgx.Conn {
	t.Helper()
	db, err := pgx.Connect(t.Context(), c.DatabaseURL())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}
