package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"takt/http/api"
	"takt/store"
)

// WorkerFilter selects workers; empty members match all.
type WorkerFilter struct {
	Status string // idle, building or offline
	// Limit is the most to return; 0 means all.
	Limit int
}

// Workers lists the fleet, the oldest first. Safe to repeat.
func (c *Client) Workers(ctx context.Context, f WorkerFilter) (api.WorkerList, error) {
	query := url.Values{}
	if f.Status != "" {
		query.Set("status", f.Status)
	}
	if f.Limit > 0 {
		query.Set("limit", strconv.Itoa(f.Limit))
	}
	var out api.WorkerList
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/workers", query: query}, nil, &out)
	return out, err
}

// Worker returns one worker. Safe to repeat.
func (c *Client) Worker(ctx context.Context, id string) (api.Worker, error) {
	return worker[api.Worker](ctx, c, http.MethodGet, id, "")
}

// WorkerStats returns a worker's figures in the words of the published menu. Safe
// to repeat.
func (c *Client) WorkerStats(ctx context.Context, id string) (api.WorkerStats, error) {
	return worker[api.WorkerStats](ctx, c, http.MethodGet, id, "/stats")
}

// Drain makes a worker get no builds; it finishes those that it has. Safe to
// repeat.
func (c *Client) Drain(ctx context.Context, id string) (api.Worker, error) {
	return worker[api.Worker](ctx, c, http.MethodPost, id, "/drain")
}

// Resume ends Drain. Safe to repeat.
func (c *Client) Resume(ctx context.Context, id string) (api.Worker, error) {
	return worker[api.Worker](ctx, c, http.MethodPost, id, "/resume")
}

// DeleteWorker removes a worker; its builds are pending again at once. A repeat
// fails, because the worker is unknown then.
func (c *Client) DeleteWorker(ctx context.Context, id string) (api.Unregistered, error) {
	return worker[api.Unregistered](ctx, c, http.MethodDelete, id, "")
}

// worker makes a call about one worker.
func worker[T any](ctx context.Context, c *Client, method, id, what string) (T, error) {
	var out T
	if !store.ValidID(id) {
		return out, store.NewError(store.InvalidArgument, strconv.Quote(id)+" is not a valid worker id")
	}
	err := c.json(ctx, call{method: method, path: "/api/workers/" + id + what}, nil, &out)
	return out, err
}

// Diagnose reports what a worker found out about itself. A repeat after a lost
// reply may keep the report twice.
func (c *Client) Diagnose(ctx context.Context, r api.PostDiagnostic) (api.PostedDiagnostic, error) {
	if r.Checks == nil {
		r.Checks = []api.DiagnosticCheck{}
	}
	var out api.PostedDiagnostic
	err := c.json(ctx, call{method: http.MethodPost, path: "/api/diagnostics/report"}, r, &out)
	return out, err
}

// Diagnostics returns a worker's last reports, newest first; limit 0 means the
// controller's default, 10. Safe to repeat.
func (c *Client) Diagnostics(ctx context.Context, workerID string, limit int) (api.DiagnosticReports, error) {
	query := url.Values{}
	if limit > 0 {
		query.Set("limit", strconv.Itoa(limit))
	}
	return diagnostics[api.DiagnosticReports](ctx, c, workerID, "", query)
}

// LatestDiagnostic returns a worker's last report. Safe to repeat.
func (c *Client) LatestDiagnostic(ctx context.Context, workerID string) (api.DiagnosticReport, error) {
	return diagnostics[api.DiagnosticReport](ctx, c, workerID, "/latest", nil)
}

func diagnostics[T any](ctx context.Context, c *Client, id, what string, query url.Values) (T, error) {
	var out T
	if !store.ValidID(id) {
		return out, store.NewError(store.InvalidArgument, strconv.Quote(id)+" is not a valid worker id")
	}
	err := c.json(ctx, call{method: http.MethodGet, path: "/api/diagnostics/" + id + what, query: query}, nil, &out)
	return out, err
}
