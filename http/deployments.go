package http

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	deploymentList    = 50
	maxDeploymentList = 500
)

// deployments starts and shows deployments and carries out orders on them.
type deployments struct {
	*audit
	Deployments
	DeploymentStore
	changed *followers
}

func (h *deployments) create(ctx context.Context, c echo.Context) (any, error) {
	var body api.DeploymentRequest
	if present, err := edge.ReadJSON(c, &body); err != nil {
		return nil, err
	} else if !present {
		return nil, edge.Invalid("source_org and target_org required")
	}
	var d store.Deployment
	what := entry{"deploy", store.Text(body.SourceOrg + " → " + body.TargetOrg), "", change(body.DeploymentRequest)}
	err := h.asRole(ctx, c, what, func(ctx context.Context, operator bool) (err error) {
		d, err = h.Start(ctx, body.DeploymentRequest, body.Token, operator)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.Response().Header().Set("Location", "/api/deployments/"+d.ID)
	return edge.Reply{Status: http.StatusAccepted, Body: h.wire(d, store.DeploymentProgress{})}, nil
}

// list handles GET /api/deployments: the newest come first.
func (h *deployments) list(ctx context.Context, c echo.Context) (any, error) {
	limit, err := edge.LimitParam(c, deploymentList, maxDeploymentList)
	if err != nil {
		return nil, err
	}
	list, err := h.List(ctx, limit)
	if err != nil {
		return nil, err
	}
	progress, err := h.Progress(ctx, edge.Each(list, func(d store.Deployment) string { return d.ID })...)
	return api.Deployments{Deployments: edge.Each(list, func(d store.Deployment) api.Deployment { return h.wire(d, progress[d.ID]) })}, err
}

func (h *deployments) show(ctx context.Context, c echo.Context) (any, error) {
	id, err := edge.IDParam(c, "id", deploymentNotFound)
	if err != nil {
		return nil, err
	}
	out, err := h.find(ctx, id)
	if err != nil || c.QueryParam("repos") == "0" {
		return out, err
	}
	repos, err := h.Repos(ctx, id, time.Time{})
	out.Repos = edge.Each(repos, api.NewDeploymentRepo)
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

// wire shows a deployment. A dry run also shows what it would cost.
func (h *deployments) wire(d store.Deployment, p store.DeploymentProgress) api.Deployment {
	out := api.NewDeployment(d, p)
	if d.Request.DryRun && d.State == store.DeploymentDone {
		cost := h.Estimate(d.Request, p)
		out.Plan = &api.DeploymentPlan{
			Create: out.Counts.Planned, Skip: out.Counts.Skipped, Conflict: out.Counts.Failed,
			Calls: cost.Calls, Seconds: cost.Took.Seconds(),
		}
	}
	return out
}

// steerWith returns a handler that carries out an order and answers with the deployment
// after it. The body, which may be absent, gives a reason.
func (h *deployments) steerWith(action string, order func(d Deployments, ctx context.Context, id string, operator bool) error) edge.Handler {
	return func(ctx context.Context, c echo.Context) (any, error) {
		id, err := edge.IDParam(c, "id", deploymentNotFound)
		if err != nil {
			return nil, err
		}
		var body api.Order
		if c.Request().ContentLength != 0 { // older clients send no body, of any type
			if err := readOrdered(c, &body, &body.Reason); err != nil {
				return nil, err
			}
		}
		err = h.asRole(ctx, c, entry{action, "deployment " + id, body.Reason, map[string]any{}}, func(ctx context.Context, operator bool) error {
			return order(h.Deployments, ctx, id, operator)
		})
		if err != nil {
			return nil, err
		}
		return h.find(ctx, id)
	}
}

func (h *deployments) retry(ctx context.Context, c echo.Context) (any, error) {
	id, err := edge.IDParam(c, "id", deploymentNotFound)
	if err != nil {
		return nil, err
	}
	var body api.DeploymentRetry
	if err := readOrdered(c, &body, &body.Reason); err != nil {
		return nil, err
	}
	n, repo := 0, store.Text(body.Repo)
	what := entry{"retry", "deployment " + id, body.Reason, change(map[string]any{"repo": repo})}
	err = h.asRole(ctx, c, what, func(ctx context.Context, operator bool) (err error) {
		n, err = h.Retry(ctx, id, repo, body.Token, operator)
		return err
	})
	return api.DeploymentRetried{Retried: n}, err
}

// asRole runs do and audits it. operator says whether the request shows the admin key or
// has a session that began with it: only operators may spend takt's own credential.
func (h *deployments) asRole(ctx context.Context, c echo.Context, what entry, do func(ctx context.Context, operator bool) error) error {
	operator := sessionOf(c).Admin()
	if key := edge.Header(c.Request().Header, edge.HeaderAdmin); key != "" {
		if err := h.keys.AuthorizeAdmin(key); err != nil {
			return err
		}
		operator = true
	}
	return h.audited(ctx, what, func(ctx context.Context) error { return do(ctx, operator) })
}
