package client

import (
	"context"

	"takt/http/api"
)

// Throttles returns a portal's rates. Safe to repeat.
func (c *Client) Throttles(ctx context.Context, portal int64) (api.ThrottleConfigs, error) {
	list, err := pages(ctx, c, api.ListRates, 0, 0, func(limit int, from api.Continue) api.ListRatesIn {
		return api.ListRatesIn{PortalID: api.HubSpotID(portal), Paging: api.Paging{Limit: limit, Continue: from}}
	}, func(out api.ThrottleConfigs) []api.ThrottleConfig { return out.Configs })
	return api.ThrottleConfigs{Configs: list}, err
}

// ThrottleQueues returns queues, the one with the oldest waiting action first; limit 0 means
// all. A portal other than 0 selects its queues only. Safe to repeat.
func (c *Client) ThrottleQueues(ctx context.Context, portal int64, limit int) (api.ThrottleQueues, error) {
	list, err := pages(ctx, c, api.ShowQueues, limit, 1000, func(limit int, from api.Continue) api.ShowQueuesIn {
		return api.ShowQueuesIn{Portal: portal, Limit: limit, Continue: from}
	}, func(out api.ThrottleQueues) []api.ThrottleQueue { return out.Queues })
	return api.ThrottleQueues{Queues: list}, err
}

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
