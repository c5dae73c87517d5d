package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

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
	// Inputs are what goes into the build beside its files; may be empty.
	Inputs store.Inputs
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
	inputs, err := inputFields(&s.Inputs)
	if err != nil {
		return api.Submitted{}, err
	}
	parts = append(parts, inputs...)
	cl := of(api.SubmitBuild, api.SubmitBuildIn{IdempotencyKey: s.IdempotencyKey})
	return upload[api.Submitted](ctx, c, cl, parts, s.Progress)
}

// inputFields returns the fields of a submit for inputs.
func inputFields(i *store.Inputs) (parts []part, err error) {
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, field(name, value))
		}
	}
	encode := func(name string, is bool, v any) {
		if is && err == nil {
			var text []byte
			text, err = json.Marshal(v)
			add(name, string(text))
		}
	}
	number := func(name string, n int) {
		if n > 0 {
			add(name, strconv.Itoa(n))
		}
	}
	encode("params", len(i.Params) > 0, i.Params)
	encode("params_optional", i.ParamsOptional, true)
	encode("secrets", len(i.Secrets) > 0, i.Secrets)
	number("timeout", int(i.Timeout/time.Second))
	number("max_attempts", i.MaxAttempts)
	encode("retry_on", len(i.RetryOn) > 0, i.RetryOn)
	add("commit", i.Commit)
	add("branch", i.Branch)
	encode("dirty", i.Dirty != nil, i.Dirty)
	add("remote", i.Remote)
	return parts, err
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
	all, err := pages(ctx, c, api.ListBuilds, f.Limit, 0, func(limit int, from api.Continue) Filter {
		f.Limit, f.Continue = limit, from
		return f
	}, func(out []api.BuildItem) []api.BuildItem { return out })
	for name, value := range f.Label.Labels() { // 0.1.0 ignores them and does not say so
		if slices.ContainsFunc(all, func(b api.BuildItem) bool { return b.Labels[name] != value }) {
			return nil, unknownTo("label")
		}
	}
	return all, err
}

// CancelAll cancels up to 100 builds that have some labels. Safe to repeat.
func (c *Client) CancelAll(ctx context.Context, in api.CancelBuildsIn) (api.SeveralChanged, error) {
	return Call(ctx, c, api.CancelBuilds, in)
}

// RetryAll submits up to 100 builds again that have some labels. After a lost reply a repeat leaves
// out the builds that were submitted again.
func (c *Client) RetryAll(ctx context.Context, in api.RetryBuildsIn) (api.SeveralChanged, error) {
	return Call(ctx, c, api.RetryBuilds, in)
}

// Retry submits a build again, with the files that the controller has. params replace or add
// parameters, nil removes one. A repeat after a lost reply may queue it twice.
func (c *Client) Retry(ctx context.Context, buildID string, auth BuildAuth, reason string, params map[string]*string) (api.Retried, error) {
	return Call(ctx, c, api.RetryBuild, api.RetryBuildIn{
		BuildAccess: auth.of(buildID), Why: api.Why{Reason: reason}, Body: api.RetryBuildChanges{Params: params},
	})
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
