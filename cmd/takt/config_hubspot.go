package main

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"takt/actors/throttle"
	"takt/actors/throttle/hubspot"
)

// HubSpotConfig is what the throttle needs to know of HubSpot.
type HubSpotConfig struct {
	// App is the app that portals install. RedirectURL defaults to the callback
	// below PublicURL.
	App hubspot.App
	// Client says where HubSpot is.
	Client hubspot.Config
	// Reply is "204" or "block": what a waiting action is answered with.
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

// validateHubSpot names what is wrong with it.
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

// throttleDeps is what the throttle works with, but its store and keys.
func (c *Config) throttleDeps() throttle.Deps {
	app := c.HubSpot.App
	if app.RedirectURL == "" && c.PublicURL != "" {
		app.RedirectURL = strings.TrimSuffix(c.PublicURL, "/") + "/api/oauth/callback"
	}
	return throttle.Deps{HubSpot: hubspot.NewClient(c.HubSpot.Client), App: app}
}
