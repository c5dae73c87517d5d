package http

import (
	"context"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// secrets sets, lists and removes the values that builds ask for by name.
type secrets struct {
	edge  *edge.Server
	audit *audit
	store Secrets
}

func (h *secrets) routes() []edge.Route {
	return []edge.Route{edge.On(h.edge, api.ListSecrets, h.list), edge.On(h.edge, api.SetSecret, h.set), edge.On(h.edge, api.RemoveSecret, h.remove)}
}

func (h *secrets) list(ctx context.Context, _ api.None) (api.Secrets, error) {
	all, err := h.store.List(ctx)
	return api.Secrets{Secrets: edge.Each(all, api.NewSecret)}, err
}

// set audits who may have the value, and nothing of the value itself.
func (h *secrets) set(ctx context.Context, in api.SetSecretIn) (out api.Secret, err error) {
	b := in.Body
	s := store.Secret{Name: string(in.Name), AllKeys: b.AllKeys, Keys: b.Keys, Mask: !b.NoMask, UpdatedBy: edge.CallerOf(ctx).Actor()}
	if err := s.Check(b.Value); err != nil {
		return out, err
	}
	for _, name := range s.Keys { // a slip would give the value to nobody, or to a key that is made later
		if k := h.edge.Keys.Called(name); !k.May(store.ScopeSubmit) {
			return out, store.NewError(store.InvalidSecret, "There is no key "+store.Clip(store.Text(name), 64)+" with the scope submit")
		}
	}
	detail := map[string]any{"keys": s.Keys, "all_keys": s.AllKeys, "masked": s.Mask}
	err = h.audit.do(ctx, entry{"set secret", "secret/" + s.Name, b.Reason, detail}, func(ctx context.Context) error {
		s, err := h.store.Set(ctx, s, b.Value)
		out = api.NewSecret(s)
		return err
	})
	return out, err
}

func (h *secrets) remove(ctx context.Context, in api.RemoveSecretIn) (none api.None, err error) {
	return none, h.audit.do(ctx, entry{"remove secret", "secret/" + string(in.Name), in.Reason, map[string]any{}}, func(ctx context.Context) error {
		return h.store.Remove(ctx, string(in.Name))
	})
}
