package forecast

import (
	"context"
	"slices"
	"time"

	"takt/http/edge"
	"takt/store"
)

// Age is how long a reading is used.
const Age = 2 * time.Second

// Store reads what a forecast is made from.
type Store interface {
	FleetSummary(ctx context.Context) ([]store.FleetSummary, error)
	Figures(ctx context.Context) (store.Figures, error)
	Durations(ctx context.Context) (map[store.Platform]store.Durations, error)
	WaitingBuild(ctx context.Context, id string) (*store.PendingBuild, error)
	Milestones(ctx context.Context, id string) ([]store.Milestone, error)
}

// Reading is what a forecast is made from. It is immutable.
type Reading struct {
	store.Figures
	Fleet map[store.Platform]Queue // "" is all
	// Ahead is by how much the database's clock is ahead of this machine's.
	Ahead time.Duration
}

// Reader makes forecasts. Its readings are shared by all callers.
type Reader struct {
	store Store
	now   *edge.Memo[*Reading]
	usual *edge.Memo[map[store.Platform]store.Durations]
}

// NewReader returns a Reader.
func NewReader(s Store) *Reader {
	return &Reader{store: s, now: edge.NewMemo[*Reading](Age), usual: edge.NewMemo[map[store.Platform]store.Durations](10 * time.Second)}
}

// Why returns why a build waits, and the build as the queue has it; nil if it does not wait.
func (r *Reader) Why(ctx context.Context, id string) (*store.PendingBuild, Reason, error) {
	b, err := r.store.WaitingBuild(ctx, id)
	if err != nil || b == nil {
		return nil, Reason{}, err
	}
	now, err := r.Now(ctx)
	if err != nil {
		return nil, Reason{}, err
	}
	return b, Why(*b, now.Fleet[b.Platform]), nil
}

// Now returns the state of queue and fleet.
func (r *Reader) Now(ctx context.Context) (*Reading, error) { return r.now.Get(ctx, r.read) }

func (r *Reader) read(ctx context.Context) (*Reading, error) {
	usual, err := r.usual.Get(ctx, r.store.Durations)
	if err != nil {
		return nil, err
	}
	fleet, err := r.store.FleetSummary(ctx)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	figures, err := r.store.Figures(ctx)
	if err != nil {
		return nil, err
	}
	now := &Reading{Figures: figures, Fleet: map[store.Platform]Queue{}, Ahead: figures.Now.Sub(asked) - time.Since(asked)/2}
	for _, f := range fleet {
		q := Queue{FleetSummary: f, Usual: usual[f.Platform]}
		for _, b := range figures.Running {
			if f.Platform == "" || b.Able && (len(b.Platforms) == 0 || slices.Contains(b.Platforms, f.Platform)) {
				r := Run{time.Duration(b.Seconds * float64(time.Second)), usual[b.Platform]}
				if q.Busy = append(q.Busy, r); r.Late() {
					q.Late++
				}
				q.Shared = q.Shared || len(b.Platforms) != 1
			}
		}
		now.Fleet[f.Platform] = q
	}
	return now, nil
}
