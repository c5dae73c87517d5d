package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"takt/http/api"
	"takt/store"
)

// Submit is a new build.
type Submit struct {
	Platform store.Platform
	Source   Content
	// Certs may be nil.
	Certs *Content
	// Priority is -10 to 10; higher is built first.
	Priority int
	// Labels may be nil.
	Labels store.Labels
	// IdempotencyKey makes a repeat with the same content within 24 hours return
	// the first reply: 1 to 255 visible characters, see [NewIdempotencyKey]. May be
	// empty.
	IdempotencyKey string
	// Progress may be nil.
	Progress Progress
}

// NewIdempotencyKey returns a key that nobody else has.
func NewIdempotencyKey() string { return rand.Text() }

// Submit queues a build. It is safe to repeat with an IdempotencyKey, if the
// controller is takt; otherwise a repeat after a lost reply may queue it twice.
func (c *Client) Submit(ctx context.Context, s Submit) (api.Submitted, error) {
	// Source first, as every published client does.
	parts := []part{file("source", "source.zip", "application/zip", s.Source)}
	if s.Certs != nil {
		parts = append(parts, file("certs", "certs.zip", "application/zip", *s.Certs))
	}
	parts = append(parts, field("platform", string(s.Platform)))
	if s.Priority != 0 {
		parts = append(parts, field("priority", strconv.Itoa(s.Priority)))
	}
	var out api.Submitted
	if len(s.Labels) > 0 {
		labels, err := json.Marshal(s.Labels)
		if err != nil {
			return out, fmt.Errorf("labels: %w", err)
		}
		parts = append(parts, field("labels", string(labels)))
	}
	header := http.Header{}
	if s.IdempotencyKey != "" {
		header.Set(api.HeaderIdempotencyKey, s.IdempotencyKey)
	}
	err := c.upload(ctx, call{method: http.MethodPost, path: "/api/builds", header: header}, parts, s.Progress, &out)
	return out, err
}

// Status tells where a build stands. Safe to repeat.
func (c *Client) Status(ctx context.Context, buildID string, auth BuildAuth) (api.BuildStatus, error) {
	var out api.BuildStatus
	if err := validBuild(buildID); err != nil {
		return out, err
	}
	header := http.Header{}
	auth.set(header)
	cl := call{method: http.MethodGet, path: "/api/builds/" + buildID + "/status", header: header}
	err := c.json(ctx, cl, nil, &out)
	return out, err
}

// Filter selects builds; empty members match all.
type Filter struct {
	Status   string
	Platform string
	WorkerID string
	// Limit is the most to return; 0 means all.
	Limit int
}

// List returns builds, newest first. Safe to repeat.
func (c *Client) List(ctx context.Context, f Filter) ([]api.BuildItem, error) {
	query := url.Values{}
	for name, value := range map[string]string{
		"status": f.Status, "platform": f.Platform, "worker_id": f.WorkerID,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if f.Limit > 0 {
		query.Set("limit", strconv.Itoa(f.Limit))
	}
	var out []api.BuildItem
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/builds", query: query}, nil, &out)
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit] // a controller that knows no limit
	}
	return out, err
}

// Show returns one build as List does. Safe to repeat.
func (c *Client) Show(ctx context.Context, buildID string) (api.BuildItem, error) {
	var out api.BuildItem
	if err := validBuild(buildID); err != nil {
		return out, err
	}
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/builds/" + buildID}, nil, &out)
	return out, err
}

// Active returns the builds that workers hold, newest first. Safe to repeat.
func (c *Client) Active(ctx context.Context) ([]api.ActiveBuild, error) {
	var out api.ActiveBuilds
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/builds/active"}, nil, &out)
	return out.Builds, err
}

// Statistics counts all builds by state. Safe to repeat.
func (c *Client) Statistics(ctx context.Context) (api.Statistics, error) {
	var out api.Statistics
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/builds/statistics"}, nil, &out)
	return out, err
}

// Retry submits a build again, with the files that the controller has. A repeat
// after a lost reply may queue it twice.
func (c *Client) Retry(ctx context.Context, buildID string, auth BuildAuth) (api.Retried, error) {
	var out api.Retried
	if err := validBuild(buildID); err != nil {
		return out, err
	}
	header := http.Header{}
	auth.set(header)
	cl := call{method: http.MethodPost, path: "/api/builds/" + buildID + "/retry", header: header}
	err := c.json(ctx, cl, nil, &out)
	return out, err
}

// LogsAfter selects a part of a build's log.
type LogsAfter struct {
	// Seq is the last line already known; 0 for the beginning.
	Seq int64
	// Limit is the most lines to return; 0 means all.
	Limit int
}

// Logs returns a build's log, oldest first. Safe to repeat.
func (c *Client) Logs(ctx context.Context, buildID string, auth BuildAuth, after LogsAfter) (api.Logs, error) {
	var out api.Logs
	if err := validBuild(buildID); err != nil {
		return out, err
	}
	header, query := http.Header{}, url.Values{}
	auth.set(header)
	if after.Seq > 0 {
		query.Set("after", strconv.FormatInt(after.Seq, 10))
	}
	if after.Limit > 0 {
		query.Set("limit", strconv.Itoa(after.Limit))
	}
	cl := call{method: http.MethodGet, path: "/api/builds/" + buildID + "/logs", query: query, header: header}
	err := c.json(ctx, cl, nil, &out)
	return out, err
}

// Cancel ends a build that has not finished. A repeat fails, because the build
// is finished then.
func (c *Client) Cancel(ctx context.Context, buildID string) (api.Cancelled, error) {
	var out api.Cancelled
	if err := validBuild(buildID); err != nil {
		return out, err
	}
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/builds/" + buildID + "/cancel"}, nil, &out)
	return out, err
}

// Health is the public word of the controller on itself. Safe to repeat.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	var out api.Health
	err := c.json(ctx, call{method: http.MethodGet, path: "/health", access: public}, nil, &out)
	return out, err
}

// Stats is the public word of the controller on all builds there ever were. Safe
// to repeat.
func (c *Client) Stats(ctx context.Context) (api.Stats, error) {
	var out api.Stats
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/stats", access: public}, nil, &out)
	return out, err
}

// TreeOptions selects what of the tree to show.
type TreeOptions struct {
	// Path is a node's path from the root, ids joined by "/"; "" is the root.
	Path string
	// All lists the children of dynamic supervisors too.
	All bool
}

// Tree returns the supervision tree. It needs the admin key. Safe to repeat.
func (c *Client) Tree(ctx context.Context, o TreeOptions) (api.TreeNode, error) {
	path, query := "/admin/tree", url.Values{}
	if o.Path != "" {
		path += "/" + o.Path
	}
	if o.All {
		query.Set("children", "all")
	}
	var out api.TreeNode
	err := c.json(ctx, call{method: http.MethodGet, path: path, query: query, access: withAdminKey}, nil, &out)
	return out, err
}
