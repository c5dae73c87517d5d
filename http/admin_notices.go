package http

import (
	"context"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// notices keeps the subscriptions of notices.
type notices struct {
	edge  *edge.Server
	audit *audit
	store Notices
}

func (h *notices) routes() []edge.Route {
	return []edge.Route{
		edge.On(h.edge, api.ListSubscriptions, h.list), edge.On(h.edge, api.CreateSubscription, h.create),
		edge.On(h.edge, api.ShowSubscription, h.show), edge.On(h.edge, api.UpdateSubscription, h.update),
		edge.On(h.edge, api.RotateSubscription, h.rotate), edge.On(h.edge, api.DeleteSubscription, h.delete),
		edge.On(h.edge, api.ListDeliveries, h.deliveries), edge.On(h.edge, api.RedriveNotices, h.redrive), edge.On(h.edge, api.TestSubscription, h.test),
	}
}

// do audits what is done to a subscription.
func (h *notices) do(ctx context.Context, action, id, reason string, detail map[string]any, act func(ctx context.Context) error) error {
	return h.audit.do(ctx, entry{action, "notices/" + store.Text(id), reason, detail}, act)
}

func (h *notices) list(ctx context.Context, _ api.None) (api.Subscriptions, error) {
	all, err := h.store.List(ctx)
	return api.Subscriptions{Subscriptions: edge.Each(all, api.NewSubscription)}, err
}

func (h *notices) create(ctx context.Context, in api.CreateSubscriptionIn) (out api.MadeSubscription, err error) {
	s := store.Subscription{URL: in.URL, NoticeFilter: store.NoticeFilter(in.SubscriptionFilter), CreatedBy: edge.CallerOf(ctx).Actor()}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	err = h.do(ctx, "create subscription", store.Origin(in.URL), in.Reason, change(in.SubscriptionFilter), func(ctx context.Context) error {
		made, secret, err := h.store.Make(ctx, s, in.GitHubToken)
		out = api.MadeSubscription{ID: made.ID, Secret: secret}
		return err
	})
	return out, err
}

func (h *notices) show(ctx context.Context, in api.SubscriptionIn) (api.Subscription, error) {
	s, err := h.store.Find(ctx, store.Text(in.ID))
	return api.NewSubscription(s), err
}

func (h *notices) update(ctx context.Context, in api.UpdateSubscriptionIn) (out api.Subscription, err error) {
	b := in.Body
	audited := b
	if b.URL != nil {
		origin := store.Origin(*b.URL)
		audited.URL = &origin
	}
	if b.GitHubToken != "" {
		audited.GitHubToken = "a new one"
	}
	err = h.do(ctx, "change subscription", in.ID, b.Reason, change(audited), func(ctx context.Context) error {
		s, secret, err := h.store.Change(ctx, store.Text(in.ID), b.GitHubToken, b.NewSecret, func(s *store.Subscription) {
			set(&s.URL, b.URL)
			set(&s.Events, b.Events)
			set(&s.Platforms, b.Platforms)
			set(&s.Labels, b.Labels)
			if b.Enabled != nil {
				s.Disabled = map[bool]string{false: "an operator disabled it"}[*b.Enabled]
			}
		})
		out = api.NewSubscription(s)
		out.Secret = secret
		return err
	})
	return out, err
}

// set sets a field to a value that was sent.
func set[T any](field, sent *T) {
	if sent != nil {
		*field = *sent
	}
}

func (h *notices) rotate(ctx context.Context, in api.SubscriptionIn) (out api.MadeSubscription, err error) {
	err = h.do(ctx, "rotate secret", in.ID, in.Reason, map[string]any{}, func(ctx context.Context) error {
		secret, err := h.store.Rotate(ctx, store.Text(in.ID))
		out = api.MadeSubscription{ID: in.ID, Secret: secret}
		return err
	})
	return out, err
}

func (h *notices) delete(ctx context.Context, in api.SubscriptionIn) (none api.None, err error) {
	return none, h.do(ctx, "delete subscription", in.ID, in.Reason, map[string]any{}, func(ctx context.Context) error {
		return h.store.Delete(ctx, store.Text(in.ID))
	})
}

func (h *notices) deliveries(ctx context.Context, in api.ListDeliveriesIn) (api.Deliveries, error) {
	if _, err := h.store.Find(ctx, store.Text(in.ID)); err != nil {
		return api.Deliveries{}, err
	}
	all, err := h.store.Deliveries(ctx, store.Text(in.ID), in.Limit)
	return api.Deliveries{Deliveries: edge.Each(all, api.NewDelivery)}, err
}

func (h *notices) redrive(ctx context.Context, in api.RedriveNoticesIn) (out api.RedrivenNotices, err error) {
	err = h.do(ctx, "redrive notices", in.ID, in.Reason, map[string]any{"number": in.Number}, func(ctx context.Context) error {
		if _, err := h.store.Find(ctx, store.Text(in.ID)); err != nil {
			return err
		}
		out.Redriven, err = h.store.Redrive(ctx, store.Text(in.ID), in.Number)
		return err
	})
	return out, err
}

func (h *notices) test(ctx context.Context, in api.SubscriptionIn) (none api.None, err error) {
	return none, h.do(ctx, "test subscription", in.ID, in.Reason, map[string]any{}, func(ctx context.Context) error {
		return h.store.Test(ctx, store.Text(in.ID))
	})
}
