package dashboard

import (
	"context"
	"strconv"
	"strings"

	"takt/http/edge"
	"takt/store"
)

// throttleData is the data of the throttle queues' page.
type throttleData struct {
	Queues []store.QueueStatus
	Next   string // query of the next page
	// One is the queue that was searched for. The page shows more about it.
	One *store.QueueStatus
}

func (d *Dashboard) loadThrottle(ctx context.Context, v *view) (any, error) {
	q, portal := store.Text(strings.TrimSpace(v.Get("q"))), int64(0)
	if strings.HasPrefix(q, "queue:") {
		one, err := d.deps.ThrottleStore.Queue(ctx, q)
		return throttleData{Queues: []store.QueueStatus{one}, One: &one}, err
	}
	if q != "" {
		var err error
		if portal, err = strconv.ParseInt(q, 10, 64); err != nil || portal <= 0 {
			return nil, edge.Invalid("Search for a queue's id, or a portal's number")
		}
	}
	depth, _ := strconv.Atoi(v.Get("after")) // a bad value means an idle queue
	list, err := d.deps.Store.Queues(ctx, portal, store.QueueStatus{ID: store.Text(v.Get("after_id")), Depth: depth}, pageRows+1)
	data := throttleData{Queues: list}
	if len(list) > pageRows {
		data.Queues = list[:pageRows]
		last := list[pageRows-1]
		data.Next = v.With("after", strconv.Itoa(min(last.Depth, 1)), "after_id", last.ID)
	}
	return data, err
}
