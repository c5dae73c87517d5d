package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	deploymentList    = 50
	maxDeploymentList = 500
)

// deploymentID is the id of the path.
func deploymentID(c echo.Context) (string, error) {
	id := c.Param("id")
	if !store.ValidID(id) {
		return "", store.NewError(store.NotFound, "Deployment not found")
	}
	return id, nil
}

// handleDeploymentCreate handles POST /api/deployments.
func (s *Server) handleDeploymentCreate(ctx context.Context, c echo.Context) error {
	var body api.DeploymentRequest
	if present, err := s.readJSON(c, &body); err != nil {
		return err
	} else if !present {
		return invalid("source_org and target_org required")
	}
	d, err := s.deps.Deployments.Start(ctx, store.DeploymentRequest{
		SourceOrg: body.SourceOrg, TargetOrg: body.TargetOrg, Include: body.Include, Exclude: body.Exclude,
		OnlyVisibility: body.OnlyVisibility, Archived: body.Archived, Forks: body.Forks, NameTemplate: body.NameTemplate,
		Visibility: body.Visibility, Concurrency: body.Concurrency, DryRun: body.DryRun,
	}, body.Token)
	if err != nil {
		return err
	}
	c.Response().Header().Set("Location", "/api/deployments/"+d.ID)
	return s.reply(c, http.StatusAccepted, s.deployment(d, store.DeploymentProgress{}))
}

// handleDeploymentList handles GET /api/deployments: the newest first.
func (s *Server) handleDeploymentList(ctx context.Context, c echo.Context) error {
	limit := deploymentList
	if v := c.QueryParam("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxDeploymentList {
			return invalid("limit must be 1 to 500")
		}
		limit = n
	}
	list, err := s.deps.Deployments.List(ctx, limit)
	if err != nil {
		return err
	}
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = d.ID
	}
	progress, err := s.deps.Deployments.Progress(ctx, ids...)
	if err != nil {
		return err
	}
	out := api.Deployments{Deployments: make([]api.Deployment, 0, len(list))}
	for _, d := range list {
		out.Deployments = append(out.Deployments, s.deployment(d, progress[d.ID]))
	}
	return s.reply(c, http.StatusOK, out)
}

// handleDeployment handles GET /api/deployments/:id.
func (s *Server) handleDeployment(ctx context.Context, c echo.Context) error {
	id, err := deploymentID(c)
	if err != nil {
		return err
	}
	out, err := s.findDeployment(ctx, id)
	if err != nil {
		return err
	}
	if c.QueryParam("repos") != "0" {
		repos, err := s.deps.Deployments.Repos(ctx, id, time.Time{})
		if err != nil {
			return err
		}
		for _, r := range repos {
			out.Repos = append(out.Repos, deploymentRepo(r))
		}
	}
	return s.reply(c, http.StatusOK, out)
}

func (s *Server) findDeployment(ctx context.Context, id string) (api.Deployment, error) {
	d, err := s.deps.Deployments.Find(ctx, id)
	if err != nil {
		return api.Deployment{}, err
	}
	progress, err := s.deps.Deployments.Progress(ctx, id)
	if err != nil {
		return api.Deployment{}, err
	}
	return s.deployment(d, progress[id]), nil
}

// deployment puts a deployment into the words of the wire.
func (s *Server) deployment(d store.Deployment, p store.DeploymentProgress) api.Deployment {
	r := d.Request
	out := api.Deployment{
		ID: d.ID, State: string(d.State), Filtered: d.Filtered, Refs: p.Refs, Error: optional(d.Error),
		Request: api.DeploymentRequest{
			SourceOrg: r.SourceOrg, TargetOrg: r.TargetOrg, Include: r.Include, Exclude: r.Exclude, OnlyVisibility: r.OnlyVisibility,
			Archived: r.Archived, Forks: r.Forks, NameTemplate: r.NameTemplate, Visibility: r.Visibility,
			Concurrency: r.Concurrency, DryRun: r.DryRun,
		},
		Counts: api.DeploymentCounts{
			Total: p.Total(), Planned: p.Steps[store.RepoPlanned], Creating: p.Steps[store.RepoCreating], Pushing: p.Steps[store.RepoPushing],
			Verifying: p.Steps[store.RepoVerifying], Done: p.Steps[store.RepoDone], Failed: p.Steps[store.RepoFailed], Skipped: p.Steps[store.RepoSkipped],
		},
		PlannedAt: api.NewMillis(d.PlannedAt), FinishedAt: api.NewMillis(d.FinishedAt),
	}
	if created := api.NewMillis(d.CreatedAt); created != nil {
		out.CreatedAt = *created
	}
	if perMinute, left := s.deps.Deployments.Pace(p); perMinute > 0 {
		out.RatePerMinute = &perMinute
		if d.State == store.DeploymentRunning {
			eta := left.Seconds()
			out.ETASeconds = &eta
		}
	}
	if r.DryRun && d.State == store.DeploymentDone {
		calls, took := s.deps.Deployments.Estimate(r, p)
		out.Plan = &api.DeploymentPlan{
			Create: out.Counts.Planned, Skip: out.Counts.Skipped, Conflict: out.Counts.Failed, Calls: calls, Seconds: took.Seconds(),
		}
	}
	return out
}

func deploymentRepo(r store.DeploymentRepo) api.DeploymentRepo {
	out := api.DeploymentRepo{
		Name: r.Name, Target: r.Target, Step: string(r.Step), Attempts: r.Attempts, Refs: r.Refs,
		Error: optional(r.Error), Warning: optional(r.Warning),
	}
	if !r.StartedAt.IsZero() {
		end := r.FinishedAt
		if end.IsZero() {
			end = r.UpdatedAt // by the same clock
		}
		ms := end.Sub(r.StartedAt).Milliseconds()
		out.DurationMS = &ms
	}
	return out
}

// deploymentOrder returns the handler of POST /api/deployments/:id/cancel, pause
// or resume.
func (s *Server) deploymentOrder(order func(ctx context.Context, id string) error) handler {
	return func(ctx context.Context, c echo.Context) error {
		id, err := deploymentID(c)
		if err != nil {
			return err
		}
		if err := order(ctx, id); err != nil {
			return err
		}
		out, err := s.findDeployment(ctx, id)
		if err != nil {
			return err
		}
		return s.reply(c, http.StatusOK, out)
	}
}

// handleDeploymentCancel handles POST /api/deployments/:id/cancel.
func (s *Server) handleDeploymentCancel(ctx context.Context, c echo.Context) error {
	return s.deploymentOrder(s.deps.Deployments.Cancel)(ctx, c)
}

// handleDeploymentPause handles POST /api/deployments/:id/pause.
func (s *Server) handleDeploymentPause(ctx context.Context, c echo.Context) error {
	return s.deploymentOrder(s.deps.Deployments.Pause)(ctx, c)
}

// handleDeploymentResume handles POST /api/deployments/:id/resume.
func (s *Server) handleDeploymentResume(ctx context.Context, c echo.Context) error {
	return s.deploymentOrder(s.deps.Deployments.Resume)(ctx, c)
}

// handleDeploymentRetry handles POST /api/deployments/:id/retry.
func (s *Server) handleDeploymentRetry(ctx context.Context, c echo.Context) error {
	id, err := deploymentID(c)
	if err != nil {
		return err
	}
	var body api.DeploymentRetry
	if _, err := s.readJSON(c, &body); err != nil {
		return err
	}
	n, err := s.deps.Deployments.Retry(ctx, id, text(body.Repo), body.Token)
	if err != nil {
		return err
	}
	return s.reply(c, http.StatusOK, api.DeploymentRetried{Retried: n})
}
