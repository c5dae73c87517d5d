package dashboard

import (
	"context"
	"strconv"
	"strings"

	"takt/store"
)

// throttleData is the data of the throttle queues' page.
type throttleData struct {
	list[store.QueueStatus]
	// One is the queue that was searched for. The page shows more about it.
	One   *store.QueueStatus
	Wrong string // what is wrong with the search
}

func (d *Dashboard) loadThrottle(ctx context.Context, v *view) (any, error) {
	q, portal := store.Text(strings.TrimSpace(v.Get("q"))), int64(0)
	if strings.HasPrefix(q, "queue:") {
		one, err := d.deps.ThrottleStore.Queue(ctx, q)
		if store.CodeOf(err) == store.NotFound {
			return throttleData{}, nil
		}
		return throttleData{list: list[store.QueueStatus]{Rows: []store.QueueStatus{one}}, One: &one}, err
	}
	if q != "" {
		var err error
		if portal, err = strconv.ParseInt(q, 10, 64); err != nil || portal <= 0 {
			return throttleData{Wrong: "Search for a queue's id, or a portal's number."}, nil //nolint:nilerr // the page says so
		}
	}
	queues, next, err := d.deps.ThrottleStore.Queues(ctx, portal, false, v.rows("after"))
	return throttleData{list: listOf(v, "after", queues, next)}, err
}
