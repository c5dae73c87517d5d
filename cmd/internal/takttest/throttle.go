package takttest

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/http/hubspottest"
)

const (
	hookPath = "/api/hubspot/action"
	// PublicURL is what webhooks are signed for.
	PublicURL = "https://takt.example.com"
	// Portal is one that always exists.
	Portal = int64(62515)
)

// ThrottleEnv is an Env with a HubSpot.
type ThrottleEnv struct {
	*Env
	HubSpot *hubspottest.HubSpot
	Base    string
	HTTP    *http.Client // sends webhooks
}

// NewThrottleEnv starts a HubSpot with these portals and Portal.
func NewThrottleEnv(t *testing.T, cfg hubspottest.Config, portals ...int64) *ThrottleEnv {
	t.Helper()
	hs := hubspottest.New(cfg)
	hs.AddPortal(append(portals, Portal)...)
	base, stop := hs.Start()
	c := &http.Client{Timeout: 30 * time.Second}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		stop()
	})
	return &ThrottleEnv{NewEnv(t), hs, base, c}
}

// StartThrottle starts a controller whose claims end 4.5 seconds after they were made.
func (env *ThrottleEnv) StartThrottle(name string, more ...string) *process.Controller {
	env.T.Helper()
	return env.StartController(name, slices.Concat(env.HubSpot.Env(env.Base), []string{"TAKT_PUBLIC_URL=" + PublicURL, "TAKT_HUBSPOT_TIMEOUT=3s"}, more)...)
}

// Install has portals install the app and gives their action 7 a rate.
func (env *ThrottleEnv) Install(c *process.Controller, rate api.ThrottleConfig, portals ...int64) {
	env.T.Helper()
	rate.ActionID = 7
	for _, rate.PortalID = range portals {
		require.NoError(env.T, env.HubSpot.Install(env.T.Context(), c.URL+"/api/oauth/authorize", c.URL+"/api/oauth/callback", rate.PortalID))
		_, err := client.Call(env.T.Context(), c.Client, api.SetRate, api.SetRateIn{ThrottleConfig: rate})
		require.NoError(env.T, err)
	}
}

// PerSecond is a rate.
func PerSecond(most int) api.ThrottleConfig {
	return api.ThrottleConfig{MaxThroughput: most, TimePeriod: 1, TimeUnit: "second"}
}

// Fire sends a webhook and reports whether it was acknowledged.
func (env *ThrottleEnv) Fire(ctx context.Context, url string, portal int64, id string) bool {
	status, _, err := env.HubSpot.Fire(ctx, env.HTTP, url+hookPath, PublicURL+hookPath, hubspottest.Webhook{PortalID: portal, ActionID: 7, CallbackID: id})
	return err == nil && status == http.StatusNoContent
}
