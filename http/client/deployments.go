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

// RetryDeployment retries repositories and returns how many.
func (c *Client) RetryDeployment(ctx context.Context, id string, r api.DeploymentRetry) (api.DeploymentRetried, error) {
	cl := of(api.RetryDeployment, api.RetryDeploymentIn{ID: api.DeploymentID(id), Body: r})
	cl.operator = r.Token == ""
	return ask[api.DeploymentRetried](ctx, c, cl)
}
