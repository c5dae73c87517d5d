package dashboard

import (
	"context"

	"takt/store"
)

// shownNotices is how many notices that are not delivered the page shows.
const shownNotices = 100

// noticesData is the data of the page of notices.
type noticesData struct {
	Subscriptions []store.Subscription
	Undelivered   []store.Delivery
}

func (d *Dashboard) loadNotices(ctx context.Context, _ *view) (any, error) {
	all, err := d.deps.Notices.List(ctx)
	if err != nil {
		return nil, err
	}
	late, err := d.deps.Notices.Deliveries(ctx, "", shownNotices)
	return noticesData{all, late}, err
}
