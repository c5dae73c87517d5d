package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"time"

	"takt/actors"
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
	// deployConcurrency is how many repositories a deployment copies at once if it does
	// not set a number itself.
	deployConcurrency = 8
	// gitTimeout bounds one git command. The largest repositories take minutes.
	gitTimeout = time.Hour
	// createsPerMinute is GitHub's limit on creating content with one credential.
	createsPerMinute = 80
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

// openForge makes the forge's client, removes the files of a killed takt, and sets up
// deployments. The owner's name stays the same across restarts, so that a takt that was
// killed finds its own deployments again at once.
func (c *controller) openForge(settings *actors.Config) error {
	deploy := c.cfg.Deploy
	creates := []forge.Limit{{N: max(createsPerMinute, deploy.PerHour/60), Per: time.Minute}, {N: deploy.PerHour, Per: time.Hour}}
	var err error
	c.forge, err = forge.New(forge.Config{
		BaseURL: deploy.GitHubURL, WorkDir: filepath.Join(c.cfg.DataDir, "deployments"), Environ: os.Environ(),
		GitTimeout: gitTimeout, Creates: creates,
	})
	if err != nil {
		return err
	}
	owner, _, err := readOrMakeKey(filepath.Join(c.cfg.DataDir, "node-id"), base64.RawURLEncoding)
	if err != nil {
		return err
	}
	settings.Deployments = deployment.Config{
		Owner: owner, Keys: c.keys, Token: deploy.GitHubToken, Allow: deploy.Allow, Creates: creates, Concurrency: deployConcurrency,
	}
	return c.forge.Clean()
}
