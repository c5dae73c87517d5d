package forecast

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
)

// slowFleet is a store whose fleet takes two seconds to read. Each reading knows the classes that
// were new when it began.
type slowFleet struct {
	classes, readings, atOnce, most atomic.Int32
}

func (s *slowFleet) FleetSummary(ctx context.Context) ([]store.FleetSummary, *store.Fleet, error) {
	s.readings.Add(1)
	s.most.Store(max(s.most.Load(), s.atOnce.Add(1)))
	defer s.atOnce.Add(-1)
	fleet := make([]store.FleetSummary, s.classes.Load()+1)
	for i := range fleet {
		fleet[i].Class = store.Class{ID: int32(i), Platform: store.IOS}
	}
	<-time.After(2 * time.Second)
	return fleet, store.NewFleet(nil), ctx.Err()
}

func (*slowFleet) Figures(context.Context) (store.Figures, error) { return store.Figures{}, nil }

func (*slowFleet) Durations(context.Context) (map[store.Platform]store.Durations, error) {
	return nil, nil // nothing was built
}

func (*slowFleet) WaitingBuild(context.Context, string) (*store.PendingBuild, error) {
	return nil, nil // not used
}

func (*slowFleet) Milestones(context.Context, string) ([]store.Milestone, error) { return nil, nil }

func TestOneReadingServesAllWhoAskWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowFleet{}
		r, begin := NewReader(s), time.Now()
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				for range 10 { // as fast as it can, each time about a build of a class of its own
					b := &store.PendingBuild{ClassID: s.classes.Add(1)}
					why, err := r.Why(t.Context(), b)
					require.NoError(t, err)
					require.NotEqual(t, "next", why.Kind, "the reading is younger than the build")
					_, err = r.Now(t.Context())
					require.NoError(t, err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, s.most.Load(), "one at a time")
		require.LessOrEqual(t, time.Duration(s.readings.Load()-1)*gap, time.Since(begin), "at most one a second")
		require.LessOrEqual(t, s.readings.Load(), int32(24), "120 questions share them")
	})
}

func TestReadingsOfAFastFleetAreASecondApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowFleet{}
		r := NewReader(quick{s})
		for i := range 5 {
			begin := time.Now()
			_, err := r.Why(t.Context(), &store.PendingBuild{ClassID: s.classes.Add(1)})
			require.NoError(t, err)
			require.Equal(t, time.Duration(min(i, 1))*gap, time.Since(begin))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(context.Canceled)
		_, err := r.Why(ctx, &store.PendingBuild{ClassID: s.classes.Add(1)})
		require.ErrorIs(t, err, context.Canceled, "who leaves waits no longer")
		<-time.After(gap) // until that reading has ended, too
	})
}

func TestASlowFleetIsReadAheadOfWhoAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &slowFleet{}
		r := NewReader(s)
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		_, err := r.Now(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = r.Now(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, s.readings.Load(), "a reading goes on when who began it leaves")

		for range 5 {
			<-time.After(Age)
			begin := time.Now()
			_, err = r.Now(t.Context())
			require.NoError(t, err)
			require.Zero(t, time.Since(begin), "the reading before is used meanwhile")
			<-time.After(2 * time.Second) // it has been read
		}
		require.EqualValues(t, 6, s.readings.Load())
		<-time.After(2 * Age)
		begin := time.Now()
		_, err = r.Now(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, time.Since(begin), "but not when it is too old")
	})
}

// quick is a slowFleet that takes no time.
type quick struct{ *slowFleet }

func (q quick) FleetSummary(context.Context) ([]store.FleetSummary, *store.Fleet, error) {
	fleet := make([]store.FleetSummary, q.classes.Load()+1)
	for i := range fleet {
		fleet[i].Class = store.Class{ID: int32(i), Platform: store.IOS}
	}
	return fleet, store.NewFleet(nil), nil
}
