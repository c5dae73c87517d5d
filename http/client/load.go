package client

import (
	"context"
	"net/http"
	"net/url"

	"takt/http/api"
)

// Load returns everything about load levelling. Safe to repeat.
func (c *Client) Load(ctx context.Context) (api.Load, error) {
	return c.load(ctx, http.MethodGet, "", nil)
}

// SetLoadLimits changes the limits of admission. Safe to repeat.
func (c *Client) SetLoadLimits(ctx context.Context, l api.LoadLimits) (api.Load, error) {
	return c.load(ctx, http.MethodPut, "/limits", l)
}

// ScalePool changes a pool of workers. Not safe to repeat with By.
func (c *Client) ScalePool(ctx context.Context, pool string, s api.LoadScale) (api.Load, error) {
	return c.load(ctx, http.MethodPost, "/pools/"+url.PathEscape(pool)+"/scale", s)
}

// SetAffinity changes the pools that a domain prefers. Safe to repeat.
func (c *Client) SetAffinity(ctx context.Context, a api.LoadAffinity) (api.Load, error) {
	return c.load(ctx, http.MethodPut, "/affinity", a)
}

// Surge starts or stops a surge, or the detection of bursts. Safe to repeat.
func (c *Client) Surge(ctx context.Context, s api.LoadSurge) (api.Load, error) {
	return c.load(ctx, http.MethodPost, "/surge", s)
}

func (c *Client) load(ctx context.Context, method, path string, body any) (out api.Load, err error) {
	err = c.json(ctx, call{method: method, path: "/admin/heijunka" + path, access: withAdminKey}, body, &out)
	return out, err
}

// Rebalance moves a worker to where there is more to do; dry only says what it
// would do. Not safe to repeat: it may move another.
func (c *Client) Rebalance(ctx context.Context, reason string, dry bool) (api.LoadRebalance, error) {
	query := url.Values{}
	if dry {
		query.Set("dry_run", "1")
	}
	var out api.LoadRebalance
	err := c.json(ctx, call{method: http.MethodPost, path: "/admin/heijunka/rebalance", query: query, access: withAdminKey}, api.Order{Reason: reason}, &out)
	return out, err
}
