package client

import (
	"context"
	"net/http"

	"takt/http/api"
)

// Deploy begins a deployment. Not safe to repeat blindly, because each call begins
// another one, although the second copies nothing twice.
func (c *Client) Deploy(ctx context.Context, r api.DeploymentRequest) (api.Deployment, error) {
	return ask[api.Deployment](ctx, c, call{method: http.MethodPost, path: "/api/deployments", operator: r.Token == "", body: r})
}

// Deployments lists the newest deployments; limit 0 means the controller's
// default. Safe to repeat.
func (c *Client) Deployments(ctx context.Context, limit int) ([]api.Deployment, error) {
	out, err := ask[api.Deployments](ctx, c, call{method: http.MethodGet, path: "/api/deployments", query: query("limit", positive(limit))})
	return out.Deployments, err
}

// Deployment returns a deployment, with its repositories if repos is set. Safe to
// repeat.
func (c *Client) Deployment(ctx context.Context, id string, repos bool) (api.Deployment, error) {
	cl := call{method: http.MethodGet, path: "/api/deployments/{deployment}", id: id}
	if !repos {
		cl.query = query("repos", "0")
	}
	return ask[api.Deployment](ctx, c, cl)
}

// SteerDeployment cancels, pauses or resumes a deployment: order is one of these
// words. The admin key goes with it, because a deployment that spends the controller's own
// credential needs it. A repeat changes nothing and returns a Conflict.
func (c *Client) SteerDeployment(ctx context.Context, id, order string) (api.Deployment, error) {
	return ask[api.Deployment](ctx, c, call{method: http.MethodPost, path: "/api/deployments/{deployment}/" + order, id: id, operator: true})
}

// RetryDeployment retries repositories and returns how many.
func (c *Client) RetryDeployment(ctx context.Context, id string, r api.DeploymentRetry) (int, error) {
	out, err := ask[api.DeploymentRetried](ctx, c, call{method: http.MethodPost, path: "/api/deployments/{deployment}/retry", id: id, operator: r.Token == "", body: r})
	return out.Retried, err
}
