package http

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// tokenLife is how long a worker's token lasts by default.
const tokenLife = time.Hour

// keys makes, lists and revokes keys with names.
type keys struct {
	edge  *edge.Server
	audit *audit
	store Keys
}

func (h *keys) routes() []edge.Route {
	return []edge.Route{
		edge.On(h.edge, api.ListKeys, h.list), edge.On(h.edge, api.CreateKey, h.create), edge.On(h.edge, api.LimitKey, h.limit), edge.On(h.edge, api.RevokeKey, h.revoke),
	}
}

// enrolling is the route on which workers get their key.
func (h *keys) enrolling() edge.Route { return edge.On(h.edge, api.EnrollWorker, h.enroll) }

func (h *keys) list(ctx context.Context, _ api.None) (api.Keys, error) {
	all, err := h.store.List(ctx)
	return api.Keys{Keys: edge.Each(all, api.NewKey)}, err
}

func (h *keys) create(ctx context.Context, in api.CreateKeyIn) (api.MadeKey, error) {
	k := store.NamedKey{Name: in.Name, Scopes: in.Scopes, CreatedBy: edge.CallerOf(ctx).Actor(), Weight: in.Weight, MaxPending: in.MaxPending, MaxPriority: in.MaxPriority}
	life, _ := api.ParseDays(in.Expires) // Check has read it
	if slices.Contains(in.Scopes, store.ScopeEnroll) && life == 0 {
		life = tokenLife
	}
	if life > 0 {
		k.ExpiresAt = time.Now().Add(life)
	}
	return h.make(ctx, entry{"create key", "key/" + in.Name, in.Reason, map[string]any{"scopes": in.Scopes, "expires": in.Expires, "weight": max(in.Weight, 1), "max_pending": in.MaxPending, "max_priority": in.MaxPriority}}, k, h.store.Create)
}

// make makes up a key and stores its digest.
func (h *keys) make(ctx context.Context, what entry, k store.NamedKey, save func(ctx context.Context, k store.NamedKey) error) (api.MadeKey, error) {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails: crypto/rand ends the process instead
	key := "takt_" + base64.RawURLEncoding.EncodeToString(random)
	k.Digest = sha256.Sum256([]byte(key))
	if err := h.audit.do(ctx, what, func(ctx context.Context) error { return save(ctx, k) }); err != nil {
		return api.MadeKey{}, err
	}
	return api.MadeKey{Name: k.Name, Key: key, ExpiresAt: api.NewKey(k).ExpiresAt}, nil
}

func (h *keys) limit(ctx context.Context, in api.LimitKeyIn) (out api.Key, err error) {
	name, how := store.Text(in.Name), map[string]any{}
	if in.Body.Weight != nil {
		how["weight"] = *in.Body.Weight
	}
	if in.Body.MaxPending != nil {
		how["max_pending"] = *in.Body.MaxPending
	}
	if in.Body.MaxPriority != nil {
		how["max_priority"] = *in.Body.MaxPriority
	}
	if in.Body.Worker != nil {
		how["worker"] = *in.Body.Worker
	}
	err = h.audit.do(ctx, entry{"limit key", "key/" + name, in.Body.Reason, how}, func(ctx context.Context) error {
		k, err := h.store.Limit(ctx, name, store.KeyLimits{Weight: in.Body.Weight, MaxPending: in.Body.MaxPending, MaxPriority: in.Body.MaxPriority, Worker: in.Body.Worker})
		out = api.NewKey(k)
		return err
	})
	return out, err
}

func (h *keys) revoke(ctx context.Context, in api.RevokeKeyIn) (none api.None, err error) {
	name := store.Text(in.Name)
	return none, h.audit.do(ctx, entry{"revoke key", "key/" + name, in.Reason, map[string]any{}}, func(ctx context.Context) error {
		return h.store.Revoke(ctx, name)
	})
}

// notInKeys are the characters of a worker's name that the name of a key can't have.
var notInKeys = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// enroll spends a token for a worker's key.
func (h *keys) enroll(ctx context.Context, in api.EnrollIn) (api.MadeKey, error) {
	token := edge.CallerOf(ctx).Key
	if token == nil {
		return api.MadeKey{}, store.NewError(store.Forbidden, "A worker enrolls with a token of takt keys enroll")
	}
	name := notInKeys.ReplaceAllString(in.Name, "-")
	name = name[:min(len(name), 50)] + "-" + strings.ToLower(rand.Text()[:8]) // a name is never used again
	k := store.NamedKey{Name: name, Scopes: []store.Scope{store.ScopeWorker}, CreatedBy: edge.CallerOf(ctx).Actor()}
	return h.make(ctx, entry{"enroll worker", "key/" + name, "", map[string]any{"token": token.Name}}, k, func(ctx context.Context, k store.NamedKey) error {
		return h.store.Enroll(ctx, token.Name, k)
	})
}
