package serving

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"time"

	"takt/actors"
	"takt/actors/deployment"
	"takt/actors/deployment/forge"
	"takt/actors/pubsub"
	"takt/actors/queue"
	"takt/cmd/internal/settings"
	"takt/http"
	"takt/http/api"
	"takt/http/forecast"
	"takt/store"
	"takt/store/postgres"
)

// openService opens what a service needs. Its routes and pages bear its name, and those of the HTTP
// server's dependencies that it does not set are never used. Its processes and their metrics exist
// if it sets its part of actors.Deps.
func (c *controller) openService(name string, p *parts) error {
	switch name {
	case api.ServiceBuilds:
		return c.openBuilds(p)
	case api.ServiceThrottle:
		return c.openThrottle(p)
	default:
		return c.openDeployments(p)
	}
}

// parts are what the tree and the HTTP server are made of.
type parts struct {
	db   *postgres.DB
	tree actors.Config
	deps actors.Deps
	// handles set what the HTTP server needs of the services, when the tree is made.
	handles []func(web *http.Deps)
}

func (c *controller) openBuilds(p *parts) error {
	cfg := &c.cfg
	var err error
	if c.files, err = settings.OpenFiles(*cfg, c.keys); err != nil {
		return err
	}
	c.files.Observe(c.metrics)
	builds := postgres.NewBuilds(p.db, postgres.BuildsConfig{QueueLimit: cfg.QueueLimit, MaxAttempts: cfg.BuildMaxAttempts, Quarantine: cfg.Quarantine, Quarantined: func(worker, why string, status store.WorkerStatus) {
		c.tree.Bus.Publish(pubsub.WorkerUpdated, store.WorkerUpdate{WorkerID: worker, Status: status, Step: store.Step{What: store.StepQuarantined, Lost: why}})
	}})
	workers := postgres.NewWorkers(p.db)
	workers.Rule.MaxAttempts = cfg.Attempts()
	assigner := postgres.NewQueue(p.db, postgres.QueueConfig{SpareCritical: cfg.SpareCritical, Quarantined: func(b store.BuildRef, cause error) {
		c.log.Error().Err(cause).Str("build", b.ID).Msg("build cannot be handed out")
		c.tree.Bus.Publish(pubsub.BuildUpdated, store.BuildUpdate{BuildID: b.ID, Platform: b.Platform, State: store.Failed, Was: b})
	}})
	tokens := store.NewWorkerTokens(store.WorkerTokenTTL, c.keys.Secrets()...)
	p.tree.Queue = queue.Config{MaxParked: cfg.Parked(), Limit: cfg.QueueLimit}
	p.tree.Timeouts = store.Timeouts{CheckInterval: cfg.CheckPeriod(), BuildTimeout: cfg.BuildTimeout, WorkerTimeout: cfg.WorkerTimeout}
	p.tree.Unmatched = cfg.UnmatchedTTL
	p.tree.Rule = store.LostRule{MaxAttempts: cfg.Attempts()}
	p.tree.Retain = cfg.Retain
	p.deps.Builds = &actors.Builds{
		Queue: assigner, Monitor: assigner, Tokens: tokens, Files: c.files,
		Fleet: postgres.NewDashboard(p.db).FleetStates, Disk: c.files.Space,
	}
	p.handles = append(p.handles, func(web *http.Deps) {
		workers.ReadySince = c.tree.ReadySince
		web.Builds, web.Workers, web.Files, web.Tokens = builds, workers, c.files, tokens
		web.Forecast = forecast.NewReader(postgres.NewDashboard(p.db))
		web.Forecast.Limit = cfg.QueueLimit
		web.Queue, web.Heartbeat = c.tree.Queue, c.tree.Monitor
	})
	return nil
}

func (c *controller) openThrottle(p *parts) error {
	kept, err := postgres.NewThrottle(p.db)
	if err != nil {
		return err
	}
	deps := c.cfg.ThrottleDeps()
	deps.Store, deps.Keys = kept, c.keys
	p.deps.Throttle = &deps
	p.handles = append(p.handles, func(web *http.Deps) {
		web.Throttle, web.ThrottleStore, web.OAuth = c.tree.Throttle, kept, c.tree.Throttle.Tokens
	})
	return nil
}

// openDeployments also removes the files of a killed takt. The owner's name stays the same
// across restarts, so that a takt that was killed finds its own deployments again at once.
func (c *controller) openDeployments(p *parts) error {
	deploy := c.cfg.Deploy
	creates := []forge.Limit{{N: max(settings.CreatesPerMinute, deploy.PerHour/60), Per: time.Minute}, {N: deploy.PerHour, Per: time.Hour}}
	var err error
	c.forge, err = forge.New(forge.Config{
		BaseURL: deploy.GitHubURL, WorkDir: filepath.Join(c.cfg.DataDir, "deployments"), Environ: os.Environ(),
		GitTimeout: settings.GitTimeout, Creates: creates,
	})
	if err != nil {
		return err
	}
	owner, _, err := settings.ReadOrMakeKey(filepath.Join(c.cfg.DataDir, "node-id"), base64.RawURLEncoding)
	if err != nil {
		return err
	}
	kept := postgres.NewDeployments(p.db)
	p.tree.Deployments = deployment.Config{
		Owner: owner, Keys: c.keys, Token: deploy.GitHubToken, Allow: deploy.Allow, Creates: creates, Concurrency: settings.DeployConcurrency,
	}
	p.deps.Deployments = &actors.Deployments{Store: kept, Forge: deployment.GitHub(c.forge)}
	p.handles = append(p.handles, func(web *http.Deps) {
		web.Deployments, web.DeploymentStore = c.tree.Deployments, kept
	})
	return c.forge.Clean()
}
