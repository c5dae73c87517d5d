package client

import (
	"context"
	"net/http"
	"net/url"

	"takt/http/api"
)

// Heijunka returns everything about load levelling. Safe to repeat.
func (c *Client) Heijunka(ctx context.Context) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodGet, "", nil)
}

// SetHeijunkaLimits changes the limits of admission. Safe to repeat.
func (c *Client) SetHeijunkaLimits(ctx context.Context, l api.HeijunkaLimits) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPut, "/limits", l)
}

// ScalePool changes a pool of workers. Not safe to repeat with By.
func (c *Client) ScalePool(ctx context.Context, pool string, s api.HeijunkaScale) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPost, "/pools/"+url.PathEscape(pool)+"/scale", s)
}

// SetAffinity changes the pools that a domain prefers. Safe to repeat.
func (c *Client) SetAffinity(ctx context.Context, a api.HeijunkaAffinity) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPut, "/affinity", a)
}

// Surge starts or stops a surge, or the detection of bursts. Safe to repeat.
func (c *Client) Surge(ctx context.Context, s api.HeijunkaSurge) (api.Heijunka, error) {
	return c.heijunka(ctx, http.MethodPost, "/surge", s)
}

func (c *Client) heijunka(ctx context.Context, method, path string, body any) (out api.Heijunka, err error) {
	err = c.json(ctx, call{method: method, path: "/admin/heijunka" + path, access: withAdminKey}, body, &out)
	return out, err
}

// Rebalance moves a worker to where there is more to do; dry only says what it
// would do. Not safe to repeat: it may move another.
func (c *Client) Rebalance(ctx context.Context, reason string, dry bool) (api.HeijunkaRebalance, error) {
	query := url.Values{}
	if dry {
		query.Set("dry_run", "1")
	}
	var out api.HeijunkaRebalance
	err := c.json(ctx, call{method: http.MethodPost, path: "/admin/heijunka/rebalance", query: query, access: withAdminKey}, api.Order{Reason: reason}, &out)
	return out, err
}
