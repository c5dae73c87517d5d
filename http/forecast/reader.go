package forecast

import (
	"cmp"
	"context"
	"time"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

// Age is how long a reading is used.
const Age = 2 * time.Second

// gap is the shortest time between two readings, whoever asks for them.
const gap = time.Second

// Store reads the data for forecasts.
type Store interface {
	FleetSummary(ctx context.Context) ([]store.FleetSummary, *store.Fleet, error)
	Figures(ctx context.Context) (store.Figures, error)
	Durations(ctx context.Context) (map[store.Platform]store.Durations, error)
	WaitingBuild(ctx context.Context, id string) (*store.PendingBuild, error)
	Milestones(ctx context.Context, id string) ([]store.Milestone, error)
}

// Reading is the data for a forecast. It is immutable.
type Reading struct {
	store.Figures
	Fleet map[int32]Queue // by the number of a class; 0 is all
	Usual map[store.Platform]store.Durations
	all   *store.Fleet
	// Limit is the queue limit. Defaults to store.DefaultQueueLimit.
	Limit int
	// Ahead is by how much the database's clock is ahead of this machine's.
	Ahead time.Duration
}

// Room returns how many builds wait, and how many may.
func (r *Reading) Room() store.QueueRoom {
	room := store.QueueRoom{Limit: cmp.Or(r.Limit, store.DefaultQueueLimit), Pending: r.Fleet[0].Pending}
	for id, q := range r.Fleet {
		if id != 0 && r.Fleet[0].Known > 0 && q.Unmatched() {
			room.Unmatched += q.Pending
		}
	}
	return room
}

// Reader makes forecasts. Its readings are shared by all callers.
type Reader struct {
	// Limit is Reading.Limit. It is set before the first use.
	Limit int
	store Store
	now   *edge.Cache[*Reading]
	usual *edge.Cache[map[store.Platform]store.Durations]
}

// NewReader returns a Reader.
func NewReader(s Store) *Reader {
	return &Reader{store: s, now: edge.NewCache[*Reading](Age), usual: edge.NewCache[map[store.Platform]store.Durations](10 * time.Second)}
}

// Waiting returns a build as the queue has it; nil if it does not wait.
func (r *Reader) Waiting(ctx context.Context, id string) (*store.PendingBuild, error) {
	return r.store.WaitingBuild(ctx, id)
}

// Why returns why a build waits. It may wait for a reading of the fleet, so its caller should
// hold no place that others need.
func (r *Reader) Why(ctx context.Context, b *store.PendingBuild) (Reason, error) {
	if !b.Due.IsZero() {
		return retryOf(*b), nil
	}
	asked := time.Now()
	now, err := r.Now(ctx)
	if err == nil && !now.knows(b) { // it is older than the build
		now, err = r.now.Since(ctx, asked, gap, r.read)
	}
	if err != nil {
		return Reason{}, err
	}
	return now.Why(*b), nil
}

// knows reports whether the reading includes the class of b.
func (r *Reading) knows(b *store.PendingBuild) bool {
	_, ok := r.Fleet[b.ClassID]
	return ok
}

// Why says why a build waits.
func (r *Reading) Why(b store.PendingBuild) Reason {
	if !b.Due.IsZero() {
		return retryOf(b)
	}
	if !r.knows(&b) {
		return Reason{Kind: "next", Text: "It was just submitted."}
	}
	return why(b, r.Fleet[b.ClassID], r.all)
}

// Now returns the state of queue and fleet.
func (r *Reader) Now(ctx context.Context) (*Reading, error) { return r.now.Get(ctx, r.read) }

// Recent returns the figures of a reading for programs; nil is no reading.
func (r *Reading) Recent() *api.RecentStatistics {
	if r == nil {
		return nil
	}
	all := r.Fleet[0]
	return &api.RecentStatistics{Ended: r.Ended, Failed: r.Failed, WorkersOnline: all.Online, WorkersServed: all.Able}
}

func (r *Reader) read(ctx context.Context) (*Reading, error) {
	usual, err := r.usual.Get(ctx, r.store.Durations)
	if err != nil {
		return nil, err
	}
	fleet, all, err := r.store.FleetSummary(ctx)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	figures, err := r.store.Figures(ctx)
	if err != nil {
		return nil, err
	}
	now := &Reading{Figures: figures, Fleet: map[int32]Queue{}, Usual: usual, all: all, Limit: r.Limit, Ahead: figures.Now.Sub(asked) - time.Since(asked)/2}
	for _, f := range fleet {
		now.Fleet[f.Class.ID] = Queue{FleetSummary: f, Usual: usual[f.Class.Platform]}
	}
	for _, b := range figures.Running {
		taken := []int32{0}
		for i := range fleet {
			if c := &fleet[i].Class; c.ID != 0 && b.Able && c.TakenBy(b.Platforms, b.Labels) {
				taken = append(taken, c.ID)
			}
		}
		r := Run{time.Duration(b.Seconds * float64(time.Second)), usual[b.Platform]}
		for _, id := range taken {
			q := now.Fleet[id]
			if q.Busy = append(q.Busy, r); r.Late() {
				q.Late++
			}
			q.Shared = q.Shared || len(taken) > 2
			now.Fleet[id] = q
		}
	}
	return now, nil
}
