package settings

import (
	"strings"
	"time"

	"takt/actors/deployment"
	"takt/actors/deployment/forge"
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

func (h *HubSpotConfig) validate(bad func(name, format string, args ...any)) {
	if h.Reply != "204" && h.Reply != "block" {
		bad("hubspot-reply", "must be 204 or block")
	}
	if h.Expiration < time.Minute || h.Expiration > 366*24*time.Hour {
		bad("hubspot-expiration", "must be 1m to 366 days")
	}
	if h.Client.Timeout < time.Second || h.Client.Timeout > 5*time.Minute {
		bad("hubspot-timeout", "must be 1s to 5m")
	}
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

// DeployConfig is the configuration of deployments.
type DeployConfig struct {
	// GitHubURL is the REST interface of the forge. GitHubToken is takt's own credential
	// there; "" means that each deployment brings its own.
	GitHubURL, GitHubToken string
	// Allow lists the organisations that GitHubToken may be used for.
	Allow []deployment.Pair
	// PerHour limits how many repositories are created per hour with one credential.
	PerHour int
}

// These are not settings because GitHub's limits are the same for everybody.
const (
	// DeployConcurrency is how many repositories a deployment copies at once if it does
	// not set a number itself.
	DeployConcurrency = 8
	// GitTimeout bounds one git command. The largest repositories take minutes.
	GitTimeout = time.Hour
	// CreatesPerMinute is GitHub's limit on creating content with one credential.
	CreatesPerMinute = 80
)

func defaultDeploy() DeployConfig {
	return DeployConfig{GitHubURL: forge.DefaultURL, PerHour: 500}
}

func (c *DeployConfig) validate(bad func(name, format string, args ...any), atLeast func(name string, n, low int)) {
	atLeast("deploy-per-hour", c.PerHour, 1)
	if _, err := forge.ParseBaseURL(c.GitHubURL); err != nil {
		bad("github-url", "%v", err)
	}
}
