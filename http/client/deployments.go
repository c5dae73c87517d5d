package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"takt/http/api"
	"takt/store"
)

// Deploy begins a deployment. Not safe to repeat blindly: each call begins one,
// though the second copies nothing twice.
func (c *Client) Deploy(ctx context.Context, r api.DeploymentRequest) (api.Deployment, error) {
	var out api.Deployment
	return out, c.json(ctx, call{method: http.MethodPost, path: "/api/deployments"}, r, &out)
}

// Deployments lists the newest deployments; limit 0 means the controller's
// default. Safe to repeat.
func (c *Client) Deployments(ctx context.Context, limit int) ([]api.Deployment, error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var out api.Deployments
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/deployments", query: query}, nil, &out)
	return out.Deployments, err
}

// Deployment returns a deployment, with its repositories if repos is set. Safe to
// repeat.
func (c *Client) Deployment(ctx context.Context, id string, repos bool) (api.Deployment, error) {
	var out api.Deployment
	if err := validDeployment(id); err != nil {
		return out, err
	}
	query := url.Values{}
	if !repos {
		query.Set("repos", "0")
	}
	return out, c.json(ctx, call{method: http.MethodGet, path: "/api/deployments/" + id, query: query}, nil, &out)
}

// SteerDeployment cancels, pauses or resumes a deployment: order is one of these
// words. Repeating it is harmless, and a Conflict.
func (c *Client) SteerDeployment(ctx context.Context, id, order string) (api.Deployment, error) {
	var out api.Deployment
	if err := validDeployment(id); err != nil {
		return out, err
	}
	return out, c.json(ctx, call{method: http.MethodPost, path: "/api/deployments/" + id + "/" + order}, nil, &out)
}

// RetryDeployment tries repositories again and returns how many.
func (c *Client) RetryDeployment(ctx context.Context, id string, r api.DeploymentRetry) (int, error) {
	if err := validDeployment(id); err != nil {
		return 0, err
	}
	var out api.DeploymentRetried
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/deployments/" + id + "/retry"}, r, &out)
	return out.Retried, err
}

func validDeployment(id string) error {
	if store.ValidID(id) {
		return nil
	}
	return store.NewError(store.InvalidArgument, fmt.Sprintf("%q is not a valid deployment id", id))
}
