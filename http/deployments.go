package http

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

const (
	deploymentList    = 50
	maxDeploymentList = 500
)

// deployments begins deployments, shows and steers them.
type deployments struct {
	*shared
	Deployments
}

func (h *deployments) create(ctx context.Context, c echo.Context) (any, error) {
	var body api.DeploymentRequest
	if present, err := readJSON(c, &body); err != nil {
		return nil, err
	} else if !present {
		return nil, invalid("source_org and target_org required")
	}
	d, err := h.Start(ctx, store.DeploymentRequest{
		SourceOrg: body.SourceOrg, TargetOrg: body.TargetOrg, Include: body.Include, Exclude: body.Exclude,
		OnlyVisibility: body.OnlyVisibility, Archived: body.Archived, Forks: body.Forks, NameTemplate: body.NameTemplate,
		Visibility: body.Visibility, Concurrency: body.Concurrency, DryRun: body.DryRun,
	}, body.Token)
	if err != nil {
		return nil, err
	}
	c.Response().Header().Set("Location", "/api/deployments/"+d.ID)
	return answer{http.StatusAccepted, h.wire(d, store.DeploymentProgress{})}, nil
}

// list handles GET /api/deployments: the newest first.
func (h *deployments) list(ctx context.Context, c echo.Context) (any, error) {
	limit, err := limitParam(c, deploymentList, maxDeploymentList)
	if err != nil {
		return nil, err
	}
	list, err := h.List(ctx, limit)
	if err != nil {
		return nil, err
	}
	progress, err := h.Progress(ctx, each(list, func(d store.Deployment) string { return d.ID })...)
	return api.Deployments{Deployments: each(list, func(d store.Deployment) api.Deployment { return h.wire(d, progress[d.ID]) })}, err
}

func (h *deployments) show(ctx context.Context, c echo.Context) (any, error) {
	id, err := idParam(c, "id", deploymentNotFound)
	if err != nil {
		return nil, err
	}
	out, err := h.find(ctx, id)
	if err != nil || c.QueryParam("repos") == "0" {
		return out, err
	}
	repos, err := h.Repos(ctx, id, time.Time{})
	out.Repos = each(repos, deploymentRepo)
	return out, err
}

func (h *deployments) find(ctx context.Context, id string) (api.Deployment, error) {
	d, err := h.Find(ctx, id)
	if err != nil {
		return api.Deployment{}, err
	}
	progress, err := h.Progress(ctx, id)
	return h.wire(d, progress[id]), err
}

// wire puts a deployment into the words of the wire.
func (h *deployments) wire(d store.Deployment, p store.DeploymentProgress) api.Deployment {
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
	if perMinute, left := h.Pace(p); perMinute > 0 {
		out.RatePerMinute = &perMinute
		if d.State == store.DeploymentRunning {
			eta := left.Seconds()
			out.ETASeconds = &eta
		}
	}
	if r.DryRun && d.State == store.DeploymentDone {
		calls, took := h.Estimate(r, p)
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

func (h *deployments) cancel(ctx context.Context, id string) (any, error) {
	return h.steered(ctx, id, h.Cancel(ctx, id))
}

func (h *deployments) pause(ctx context.Context, id string) (any, error) {
	return h.steered(ctx, id, h.Pause(ctx, id))
}

func (h *deployments) resume(ctx context.Context, id string) (any, error) {
	return h.steered(ctx, id, h.Resume(ctx, id))
}

// steered answers with a deployment as it is now, unless err says why not.
func (h *deployments) steered(ctx context.Context, id string, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return h.find(ctx, id)
}

func (h *deployments) retry(ctx context.Context, c echo.Context) (any, error) {
	id, err := idParam(c, "id", deploymentNotFound)
	if err != nil {
		return nil, err
	}
	var body api.DeploymentRetry
	if _, err := readJSON(c, &body); err != nil {
		return nil, err
	}
	n, err := h.Retry(ctx, id, text(body.Repo), body.Token)
	return api.DeploymentRetried{Retried: n}, err
}
