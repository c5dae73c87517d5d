package settings

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"takt/actors/throttle"
	"takt/store/hubspot"
	"takt/store/tracing"
)

// HubSpotConfig is the throttle's configuration for HubSpot.
type HubSpotConfig struct {
	// App is the app that portals install. Its RedirectURL defaults to the callback below
	// PublicURL.
	App hubspot.App
	// Client holds the addresses of HubSpot.
	Client hubspot.Config
	// Reply is the answer to an action that has to wait: "204" or "block".
	Reply string
	// Expiration is how long HubSpot waits for an action.
	Expiration time.Duration
}

func defaultHubSpot() HubSpotConfig {
	return HubSpotConfig{
		App:   hubspot.App{Scopes: "automation oauth"},
		Reply: "204", Expiration: 7 * 24 * time.Hour, Client: hubspot.Config{Timeout: 30 * time.Second},
	}
}

// validateHubSpot reports what is wrong with the HubSpot settings.
func (c *Config) validateHubSpot() (faults []error) {
	h := c.HubSpot
	bad := func(name, text string) { faults = append(faults, fmt.Errorf("%s: %s", name, text)) }
	for name, v := range map[string]string{
		"hubspot-redirect-url": h.App.RedirectURL, "hubspot-api-url": h.Client.API,
	} {
		if u, err := url.Parse(v); v != "" && (err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https")) {
			bad(name, "must be an http or https URL")
		}
	}
	if h.Reply != "204" && h.Reply != "block" {
		bad("hubspot-reply", "must be 204 or block")
	}
	if h.Expiration < time.Minute || h.Expiration > 366*24*time.Hour {
		bad("hubspot-expiration", "must be 1m to 366 days")
	}
	if h.Client.Timeout < time.Second || h.Client.Timeout > 5*time.Minute {
		bad("hubspot-timeout", "must be 1s to 5m")
	}
	return faults
}

// ThrottleDeps returns the throttle's dependencies except its store and keys.
func (c *Config) ThrottleDeps() throttle.Deps {
	app := c.HubSpot.App
	c.HubSpot.Client.Wrap = tracing.Outgoing
	if app.RedirectURL == "" && c.PublicURL != "" {
		app.RedirectURL = strings.TrimSuffix(c.PublicURL, "/") + "/api/oauth/callback"
	}
	return throttle.Deps{HubSpot: hubspot.NewClient(c.HubSpot.Client), App: app}
}
