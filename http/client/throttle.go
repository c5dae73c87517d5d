package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"takt/http/api"
)

// SetThrottle sets a rate and returns it as saved. Safe to repeat.
func (c *Client) SetThrottle(ctx context.Context, t api.ThrottleConfig) (api.ThrottleConfig, error) {
	var out api.ThrottleConfig
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/config"}, t, &out)
	return out, err
}

// Throttle returns the rate of an action. Safe to repeat.
func (c *Client) Throttle(ctx context.Context, portal, action int64) (api.ThrottleConfig, error) {
	var out api.ThrottleConfig
	err := c.json(ctx, call{method: http.MethodGet, path: fmt.Sprintf("/api/config/%d/%d", portal, action)}, nil, &out)
	return out, err
}

// Throttles returns a portal's rates. Safe to repeat.
func (c *Client) Throttles(ctx context.Context, portal int64) (api.ThrottleConfigs, error) {
	var out api.ThrottleConfigs
	err := c.json(ctx, call{method: http.MethodGet, path: fmt.Sprintf("/api/config/%d", portal)}, nil, &out)
	return out, err
}

// DeleteThrottle refuses new actions; those that wait keep their rate.
func (c *Client) DeleteThrottle(ctx context.Context, portal, action int64) error {
	return c.json(ctx, call{method: http.MethodDelete, path: fmt.Sprintf("/api/config/%d/%d", portal, action)}, nil, nil)
}

// ThrottleQueues returns queues, those with the oldest waiting action first; of one
// portal, unless that is 0. Safe to repeat.
func (c *Client) ThrottleQueues(ctx context.Context, portal int64, limit int) (api.ThrottleQueues, error) {
	query := url.Values{}
	if portal > 0 {
		query.Set("portal", strconv.FormatInt(portal, 10))
	}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	var out api.ThrottleQueues
	err := c.json(ctx, call{method: http.MethodGet, path: "/admin/throttle/queues", query: query, access: withAdminKey}, nil, &out)
	return out, err
}

// PauseQueue stops a queue from sending, or lets it go on. Safe to repeat.
func (c *Client) PauseQueue(ctx context.Context, id string, paused bool, reason string) (api.ThrottleQueue, error) {
	action := "/resume"
	if paused {
		action = "/pause"
	}
	var out api.ThrottleQueue
	err := c.json(ctx, call{method: http.MethodPost, path: "/admin/throttle/queues/" + id + action, access: withAdminKey}, api.ThrottleOrder{Reason: reason}, &out)
	return out, err
}

// RedriveQueue has what failed in a queue tried again now.
func (c *Client) RedriveQueue(ctx context.Context, id, reason string) (api.Redriven, error) {
	var out api.Redriven
	err := c.json(ctx, call{method: http.MethodPost, path: "/admin/throttle/queues/" + id + "/redrive", access: withAdminKey}, api.ThrottleOrder{Reason: reason}, &out)
	return out, err
}
