package client

import (
	"context"

	"takt/http/api"
)

// Throttles returns a portal's rates. Safe to repeat.
func (c *Client) Throttles(ctx context.Context, portal int64) (api.ThrottleConfigs, error) {
	list, err := pages(ctx, c, api.ListRates, 0, 0, func(limit int, from api.Continue) api.ListRatesIn {
		return api.ListRatesIn{PortalID: api.HubSpotID(portal), Paging: api.Paging{Limit: limit, Continue: from}}
	}, func(out api.ThrottleConfigs) []api.ThrottleConfig { return out.Configs })
	return api.ThrottleConfigs{Configs: list}, err
}

// ThrottleQueues returns queues, the one with the oldest waiting action first; limit 0 means
// all. A portal other than 0 selects its queues only. Safe to repeat.
func (c *Client) ThrottleQueues(ctx context.Context, portal int64, limit int) (api.ThrottleQueues, error) {
	list, err := pages(ctx, c, api.ShowQueues, limit, 1000, func(limit int, from api.Continue) api.ShowQueuesIn {
		return api.ShowQueuesIn{Portal: portal, Limit: limit, Continue: from}
	}, func(out api.ThrottleQueues) []api.ThrottleQueue { return out.Queues })
	return api.ThrottleQueues{Queues: list}, err
}
