package main

import (
	"encoding/base64"
	"fmt"
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
	// Concurrency is how many repositories a deployment copies at once, unless it
	// says so itself.
	Concurrency int
	// GitTimeout bounds one git command.
	GitTimeout time.Duration
	// PerMinute and PerHour bound how many repositories are made with one
	// credential.
	PerMinute, PerHour int
}

func defaultDeploy() DeployConfig {
	return DeployConfig{GitHubURL: forge.DefaultURL, Concurrency: 8, GitTimeout: time.Hour, PerMinute: 80, PerHour: 500}
}

// deploySettings adds the rows of these settings.
func deploySettings(
	str func(name, usage string, f func(*Config) *string, env ...string) *setting,
	num func(name, usage string, f func(*Config) *int, env ...string),
	dur func(name, usage string, f func(*Config) *time.Duration, env ...string),
) {
	str("github-url", "REST interface of GitHub, or of a GitHub Enterprise Server (https://HOST/api/v3/), for deployments",
		func(c *Config) *string { return &c.Deploy.GitHubURL }, "TAKT_GITHUB_URL")
	str("github-token", "takt's own credential for deployments; without it each one brings its own",
		func(c *Config) *string { return &c.Deploy.GitHubToken }, "TAKT_GITHUB_TOKEN").secret = true
	num("deploy-concurrency", "repositories that a deployment copies at once, unless it says so itself, at most 32",
		func(c *Config) *int { return &c.Deploy.Concurrency }, "TAKT_DEPLOY_CONCURRENCY")
	dur("deploy-git-timeout", "time limit of one git command of a deployment",
		func(c *Config) *time.Duration { return &c.Deploy.GitTimeout }, "TAKT_DEPLOY_GIT_TIMEOUT")
	num("deploy-per-minute", "repositories that are made with one credential per minute",
		func(c *Config) *int { return &c.Deploy.PerMinute }, "TAKT_DEPLOY_PER_MINUTE")
	num("deploy-per-hour", "repositories that are made with one credential per hour",
		func(c *Config) *int { return &c.Deploy.PerHour }, "TAKT_DEPLOY_PER_HOUR")
}

func (c *DeployConfig) validate(bad func(name, format string, args ...any), atLeast func(name string, n, low int)) {
	atLeast("deploy-concurrency", c.Concurrency, 1)
	atLeast("deploy-per-minute", c.PerMinute, 1)
	atLeast("deploy-per-hour", c.PerHour, 1)
	if c.Concurrency > 32 {
		bad("deploy-concurrency", "must be at most 32")
	}
	if c.GitTimeout < time.Second {
		bad("deploy-git-timeout", "must be at least 1s")
	}
	if _, err := forge.ParseBaseURL(c.GitHubURL); err != nil {
		bad("github-url", "%v", err)
	}
}

// openForge makes the client of the forge, removes what a killed takt has left of
// it, and sets up deployments. Their owner's name is kept, so that a takt that was
// killed finds its own again at once.
func (c *controller) openForge(settings *actors.Config) error {
	deploy := c.cfg.Deploy
	creates := []forge.Limit{{N: deploy.PerMinute, Per: time.Minute}, {N: deploy.PerHour, Per: time.Hour}}
	var err error
	c.forge, err = forge.New(forge.Config{
		BaseURL: deploy.GitHubURL, WorkDir: filepath.Join(c.cfg.DataDir, "deployments"), Environ: os.Environ(),
		GitTimeout: deploy.GitTimeout, Creates: creates,
	})
	if err != nil {
		return err
	}
	key, err := base64.StdEncoding.DecodeString(c.cfg.EncryptionKey)
	if err != nil {
		return fmt.Errorf("encryption key: %w", err)
	}
	owner, _, err := readOrMakeKey(filepath.Join(c.cfg.DataDir, "node-id"), func() string { return randomText(base64.RawURLEncoding) })
	if err != nil {
		return err
	}
	settings.Deployments = deployment.Config{
		Owner: owner, Key: key, Token: deploy.GitHubToken, Creates: creates, Concurrency: deploy.Concurrency,
	}
	return c.forge.Clean()
}
