package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"takt/http/api"
)

// SetThrottle sets a rate and returns it as saved. Safe to repeat.
func (c *Client) SetThrottle(ctx context.Context, t api.ThrottleConfig) (api.ThrottleConfig, error) {
	return ask[api.ThrottleConfig](ctx, c, call{method: http.MethodPost, path: "/api/config", body: t})
}

// Throttle returns the rate of an action. Safe to repeat.
func (c *Client) Throttle(ctx context.Context, portal, action int64) (api.ThrottleConfig, error) {
	return ask[api.ThrottleConfig](ctx, c, call{method: http.MethodGet, path: fmt.Sprintf("/api/config/%d/%d", portal, action)})
}

// Throttles returns a portal's rates. Safe to repeat.
func (c *Client) Throttles(ctx context.Context, portal int64) (api.ThrottleConfigs, error) {
	return ask[api.ThrottleConfigs](ctx, c, call{method: http.MethodGet, path: fmt.Sprintf("/api/config/%d", portal)})
}

// DeleteThrottle deletes a rate. New actions are refused; waiting actions keep their
// rate.
func (c *Client) DeleteThrottle(ctx context.Context, portal, action int64) error {
	_, err := ask[nothing](ctx, c, call{method: http.MethodDelete, path: fmt.Sprintf("/api/config/%d/%d", portal, action)})
	return err
}

// ThrottleQueues returns queues, the one with the oldest waiting action first. A
// portal other than 0 selects its queues only. Safe to repeat.
func (c *Client) ThrottleQueues(ctx context.Context, portal int64, limit int) (api.ThrottleQueues, error) {
	return ask[api.ThrottleQueues](ctx, c, call{
		method: http.MethodGet, path: "/admin/throttle/queues", query: query("portal", positive(portal), "limit", positive(limit)),
	})
}

// PauseQueue pauses or resumes a queue. Safe to repeat.
func (c *Client) PauseQueue(ctx context.Context, id string, paused bool, reason string) (api.ThrottleQueue, error) {
	action := "resume"
	if paused {
		action = "pause"
	}
	return orderQueue[api.ThrottleQueue](ctx, c, id, action, reason)
}

// RedriveQueue retries a queue's failed actions now.
func (c *Client) RedriveQueue(ctx context.Context, id, reason string) (api.Redriven, error) {
	return orderQueue[api.Redriven](ctx, c, id, "redrive", reason)
}

func orderQueue[T any](ctx context.Context, c *Client, id, action, reason string) (T, error) {
	path := "/admin/throttle/queues/" + url.PathEscape(id) + "/" + action
	return ask[T](ctx, c, call{method: http.MethodPost, path: path, body: api.ThrottleOrder{Reason: reason}})
}
