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

// DeployConfig is what deployments run with.
type DeployConfig struct {
	// GitHubURL is the REST interface of the forge that they work on, and
	// GitHubToken takt's own credential there; "" if each one brings its own.
	GitHubURL, GitHubToken string
	// Allow are the organisations that GitHubToken is for.
	Allow []deployment.Pair
	// PerHour bounds how many repositories are made with one credential.
	PerHour int
}

// GitHub's limits are the same for everybody, so these are no settings.
const (
	// deployConcurrency is how many repositories a deployment copies at once,
	// unless it says so itself.
	deployConcurrency = 8
	// gitTimeout bounds one git command. The largest repositories take minutes.
	gitTimeout = time.Hour
	// createsPerMinute is GitHub's limit of what one credential makes.
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

// openForge makes the client of the forge, removes the files of a killed takt, and
// sets up deployments. It keeps the owner's name, so that a takt that was killed
// finds its own deployments again at once.
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
