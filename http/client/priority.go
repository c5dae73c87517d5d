package client

import (
	"context"
	"net/http"

	"takt/http/api"
)

// SetPriority moves a build that waits within the queue: -10 to 10, higher is built
// first. Safe to repeat.
func (c *Client) SetPriority(ctx context.Context, buildID string, priority int) (api.BuildItem, error) {
	var out api.BuildItem
	if err := validBuild(buildID); err != nil {
		return out, err
	}
	err := c.json(ctx, call{method: http.MethodPatch, path: "/api/builds/" + buildID}, api.BuildPatch{Priority: &priority}, &out)
	return out, err
}
