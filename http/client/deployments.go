package client

import (
	"context"

	"takt/http/api"
)

// Deploy begins a deployment. Not safe to repeat blindly, because each call begins
// another one, although the second copies nothing twice.
func (c *Client) Deploy(ctx context.Context, r api.DeploymentRequest) (api.Deployment, error) {
	cl := of(api.StartDeployment, r)
	cl.operator = r.Token == ""
	return ask[api.Deployment](ctx, c, cl)
}

// Deployments lists the newest deployments; limit 0 means all. Safe to repeat.
func (c *Client) Deployments(ctx context.Context, limit int) ([]api.Deployment, error) {
	return pages(ctx, c, api.ListDeployments, limit, 500, func(limit int, from api.Continue) api.ListDeploymentsIn {
		return api.ListDeploymentsIn{Limit: limit, Continue: from}
	}, func(out api.Deployments) []api.Deployment { return out.Deployments })
}

// Deployment returns a deployment, with its repositories if repos is set. Safe to
// repeat.
func (c *Client) Deployment(ctx context.Context, id string, repos bool) (api.Deployment, error) {
	in := api.ShowDeploymentIn{ID: api.DeploymentID(id)}
	if !repos {
		in.Repos = "0"
	}
	return Call(ctx, c, api.ShowDeployment, in)
}

// SteerDeployment cancels, pauses or resumes a deployment: order is one of these
// words. The admin key goes with it, because a deployment that spends the controller's own
// credential needs it. A repeat changes nothing and returns a Conflict.
func (c *Client) SteerDeployment(ctx context.Context, id, order string) (api.Deployment, error) {
	e := api.CancelDeployment
	switch order {
	case "pause":
		e = api.PauseDeployment
	case "resume":
		e = api.ResumeDeployment
	}
	return Call(ctx, c, e, api.DeploymentOrder{ID: api.DeploymentID(id)})
}

// RetryDeployment retries repositories and returns how many.
func (c *Client) RetryDeployment(ctx context.Context, id string, r api.DeploymentRetry) (int, error) {
	cl := of(api.RetryDeployment, api.RetryDeploymentIn{ID: api.DeploymentID(id), Body: r})
	cl.operator = r.Token == ""
	out, err := ask[api.DeploymentRetried](ctx, c, cl)
	return out.Retried, err
}
