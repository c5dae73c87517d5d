package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
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
	// Require and Prefer are as in the form; may be empty.
	Require, Prefer string
	// Facts say where the source comes from.
	Facts Facts
	// IdempotencyKey makes a repeat with the same content within 24 hours return the
	// first reply. It has 1 to 255 visible characters, see [NewIdempotencyKey]. May
	// be empty.
	IdempotencyKey string
	// Progress may be nil.
	Progress Progress
}

// NewIdempotencyKey returns a random, unique key.
func NewIdempotencyKey() string { return rand.Text() }

// Submit queues a build. It is safe to repeat with an IdempotencyKey if the
// controller is takt. Otherwise a repeat after a lost reply may queue the build
// twice.
func (c *Client) Submit(ctx context.Context, s Submit) (api.Submitted, error) {
	// The source comes first, as in every published client.
	parts := []part{file("source", "source.zip", "application/zip", s.Source)}
	if s.Certs != nil {
		parts = append(parts, file("certs", "certs.zip", "application/zip", *s.Certs))
	}
	parts = append(parts, field("platform", string(s.Platform)))
	if s.Priority != 0 {
		parts = append(parts, field("priority", strconv.Itoa(s.Priority)))
	}
	if len(s.Labels) > 0 {
		labels, err := json.Marshal(s.Labels)
		if err != nil {
			return api.Submitted{}, fmt.Errorf("labels: %w", err)
		}
		parts = append(parts, field("labels", string(labels)))
	}
	for name, text := range map[string]string{"require": s.Require, "prefer": s.Prefer} {
		if text != "" {
			parts = append(parts, field(name, text))
		}
	}
	parts = append(parts, s.Facts.parts()...)
	cl := of(api.SubmitBuild, api.SubmitBuildIn{IdempotencyKey: s.IdempotencyKey})
	return upload[api.Submitted](ctx, c, cl, parts, s.Progress)
}

// Status returns the state of a build. Safe to repeat.
func (c *Client) Status(ctx context.Context, buildID string, auth BuildAuth) (api.BuildStatus, error) {
	return Call(ctx, c, api.ShowBuildStatus, auth.of(buildID))
}

// Why returns why a build waits, and when it may start. Safe to repeat.
func (c *Client) Why(ctx context.Context, buildID string, auth BuildAuth) (api.BuildWhy, error) {
	return Call(ctx, c, api.ExplainWait, auth.of(buildID))
}

// Filter selects builds; empty members match all.
type Filter = api.BuildFilter

// List returns builds, newest first; limit 0 means all. Safe to repeat.
func (c *Client) List(ctx context.Context, f Filter) ([]api.BuildItem, error) {
	return pages(ctx, c, api.ListBuilds, f.Limit, 0, func(limit int, from api.Continue) Filter {
		f.Limit, f.Continue = limit, from
		return f
	}, func(out []api.BuildItem) []api.BuildItem { return out })
}

// Retry submits a build again, with the files that the controller has. A repeat after
// a lost reply may queue it twice.
func (c *Client) Retry(ctx context.Context, buildID string, auth BuildAuth, reason string) (api.Retried, error) {
	return Call(ctx, c, api.RetryBuild, api.RetryBuildIn{BuildAccess: auth.of(buildID), Why: api.Why{Reason: reason}})
}

// LogsAfter selects a part of a build's log.
type LogsAfter struct {
	// Seq is the last line already known; 0 starts at the beginning.
	Seq int64
	// Last, if it is not 0, returns only so many of the last lines, and Seq does not count.
	Last int64
	// Limit is the most lines to return; 0 means all.
	Limit int
}

// Logs returns a build's log, oldest first. Safe to repeat.
func (c *Client) Logs(ctx context.Context, buildID string, auth BuildAuth, after LogsAfter) (api.Logs, error) {
	return Call(ctx, c, api.ReadLogs, api.ReadLogsIn{BuildAccess: auth.of(buildID), After: after.Seq, Tail: after.Last, Limit: after.Limit})
}

// Cancel ends a build that has not finished. A repeat fails, because the build has
// then finished.
func (c *Client) Cancel(ctx context.Context, buildID, reason string) (api.Cancelled, error) {
	return Call(ctx, c, api.CancelBuild, api.CancelBuildIn{ID: api.BuildID(buildID), Why: api.Why{Reason: reason}})
}

// SetPriority changes the priority of a pending build: -10 to 10, higher is built
// first. Safe to repeat.
func (c *Client) SetPriority(ctx context.Context, buildID string, priority int, reason string) (api.BuildItem, error) {
	body := api.BuildPatch{Priority: &priority, Reason: reason}
	return Call(ctx, c, api.PatchBuild, api.PatchBuildIn{ID: api.BuildID(buildID), Body: body})
}
