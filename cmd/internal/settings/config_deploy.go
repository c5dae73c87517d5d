package settings

import (
	"time"

	"takt/actors/deployment"
	"takt/actors/deployment/forge"
)

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
