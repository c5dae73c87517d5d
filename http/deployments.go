package http

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// deployments starts and shows deployments and carries out orders on them.
type deployments struct {
	edge    *edge.Server
	audit   *audit
	work    Deployments
	store   DeploymentStore
	changed *followers
}

func (h *deployments) routes() []edge.Route {
	follow := h.edge.Of(api.FollowDeployment.Route)
	follow.Serve = h.serveEvents
	return []edge.Route{
		follow,
		edge.OnRequest(h.edge, api.StartDeployment, h.create),
		edge.OnList(h.edge, api.ListDeployments, h.list),
		edge.On(h.edge, api.ShowDeployment, h.show),
		edge.On(h.edge, api.CancelDeployment, h.steer("cancel", Deployments.Cancel)),
		edge.On(h.edge, api.PauseDeployment, h.steer("pause", Deployments.Pause)),
		edge.On(h.edge, api.ResumeDeployment, h.steer("resume", Deployments.Resume)),
		edge.On(h.edge, api.RetryDeployment, h.retry),
	}
}

// create starts a deployment. in is nil if there is no body.
func (h *deployments) create(ctx context.Context, c echo.Context, in *api.DeploymentRequest) (any, error) {
	if in == nil {
		return nil, edge.Invalid("source_org and target_org required")
	}
	var made store.Deployment
	what := entry{"deploy", store.Text(in.SourceOrg + " → " + in.TargetOrg), "", change(in.DeploymentRequest)}
	err := h.asRole(ctx, what, func(ctx context.Context, operator bool) (err error) {
		made, err = h.work.Start(ctx, in.DeploymentRequest, in.Token, operator)
		return err
	})
	if err == nil {
		c.Response().Header().Set("Location", "/api/deployments/"+made.ID)
	}
	return edge.Reply{Status: api.StartDeployment.Status, Body: h.wire(made, store.DeploymentProgress{})}, err
}

// list shows the newest first.
func (h *deployments) list(_ context.Context, in api.ListDeploymentsIn) (edge.List, error) {
	var progress map[string]store.DeploymentProgress // of those that were read last
	read := func(ctx context.Context, p store.Page) (list []store.Deployment, next store.Cursor, err error) {
		if list, next, err = h.store.List(ctx, p); err != nil || p.Skip > 0 {
			return list, next, err
		}
		progress, err = h.store.Progress(ctx, edge.Each(list, func(d store.Deployment) string { return d.ID })...)
		return list, next, err
	}
	wire := func(d store.Deployment) api.Deployment { return h.wire(d, progress[d.ID]) }
	return edge.ListOf(in.Limit, in.Cursor, read, wire).In("deployments", false), nil
}

func (h *deployments) show(ctx context.Context, in api.ShowDeploymentIn) (api.Deployment, error) {
	id := string(in.ID)
	out, err := h.find(ctx, id)
	if err != nil || in.Repos == "0" {
		return out, err
	}
	repos, err := h.store.Repos(ctx, id, time.Time{})
	out.Repos = edge.Each(repos, api.NewDeploymentRepo)
	return out, err
}

func (h *deployments) find(ctx context.Context, id string) (api.Deployment, error) {
	d, err := h.store.Find(ctx, id)
	if err != nil {
		return api.Deployment{}, err
	}
	progress, err := h.store.Progress(ctx, id)
	return h.wire(d, progress[id]), err
}

// wire shows a deployment. A dry run also shows what it would cost.
func (h *deployments) wire(d store.Deployment, p store.DeploymentProgress) api.Deployment {
	out := api.NewDeployment(d, p)
	if d.Request.DryRun && d.State == store.DeploymentDone {
		cost := h.work.Estimate(d.Request, p)
		out.Plan = &api.DeploymentPlan{
			Create: out.Counts.Planned, Skip: out.Counts.Skipped, Conflict: out.Counts.Failed,
			Calls: cost.Calls, Seconds: cost.Took.Seconds(),
		}
	}
	return out
}

// steer returns the handler of an order, which answers with the deployment after it.
func (h *deployments) steer(action string, order func(d Deployments, ctx context.Context, id string, operator bool) error) func(ctx context.Context, in api.DeploymentOrder) (api.Deployment, error) {
	return func(ctx context.Context, in api.DeploymentOrder) (api.Deployment, error) {
		id := string(in.ID)
		err := h.asRole(ctx, entry{action, "deployment " + id, in.Body.Reason, map[string]any{}}, func(ctx context.Context, operator bool) error {
			return order(h.work, ctx, id, operator)
		})
		if err != nil {
			return api.Deployment{}, err
		}
		return h.find(ctx, id)
	}
}

func (h *deployments) retry(ctx context.Context, in api.RetryDeploymentIn) (reply api.DeploymentRetried, err error) {
	id, repo := string(in.ID), store.Text(in.Body.Repo)
	what := entry{"retry", "deployment " + id, in.Body.Reason, change(map[string]any{"repo": repo})}
	err = h.asRole(ctx, what, func(ctx context.Context, operator bool) (err error) {
		reply.Retried, err = h.work.Retry(ctx, id, repo, in.Body.Token, operator)
		return err
	})
	return reply, err
}

// asRole runs do and audits it. operator says whether the caller is one: only operators may
// spend takt's own credential.
func (h *deployments) asRole(ctx context.Context, what entry, do func(ctx context.Context, operator bool) error) error {
	caller := edge.CallerOf(ctx)
	if caller.WrongAdminKey {
		return edge.ErrWrongAdminKey
	}
	return h.audit.do(ctx, what, func(ctx context.Context) error { return do(ctx, caller.Operator()) })
}
