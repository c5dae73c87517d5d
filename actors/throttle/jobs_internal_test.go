package throttle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest"
)

// A start that is given up on at any moment leaves no client that runs; Stop never
// runs beside Start, which the race detector sees.
func TestAStartOfRiverThatIsGivenUpEndsItsClient(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	gone := errors.New("the actor ends")
	j := &Jobs{}
	started, givenUp := 0, 0
	for i := range 40 {
		client, err := j.newClient(db.Pool, zerolog.Nop())
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		timer := time.AfterFunc(time.Duration(i)*250*time.Microsecond, func() { cancel(gone) })
		err = start(ctx, t.Context(), client)
		timer.Stop()
		if err == nil {
			started++
			require.NoError(t, client.StopAndCancel(t.Context()))
		} else {
			givenUp++
			require.ErrorIs(t, err, gone)
		}
		<-client.Stopped()
		cancel(nil)
	}
	require.Positive(t, givenUp)
	t.Logf("%d started, %d were given up", started, givenUp)
}

// stuck are queues of which a job learns nothing until it is interrupted.
type stuck struct {
	Queues
	asked chan struct{}
}

func (s stuck) Waiting(ctx context.Context, _ string) (bool, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	return false, ctx.Err()
}

func (stuck) BusyQueues(context.Context, int64, int64, int) ([]store.QueueKey, error) {
	return nil, errSlowStart
}
func (stuck) Restore(context.Context, int) ([]store.QueueKey, error)        { return nil, nil }
func (stuck) SweepWindows(context.Context, int64, int) (int, int64, error)  { return 0, 0, nil }
func (stuck) Forget(context.Context, time.Duration, int) (int, error)       { return 0, nil }
func (stuck) ForgetQueues(context.Context, time.Duration, int) (int, error) { return 0, nil }

func TestAJobThatWaitsDoesNotDelayTheEndOfItsClient(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	j := &Jobs{db: stuck{asked: make(chan struct{})}, snooze: time.Minute}
	client, err := j.newClient(db.Pool, zerolog.Nop())
	require.NoError(t, err)
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	require.NoError(t, start(ctx, t.Context(), client))
	_, err = client.Insert(ctx, store.ThrottleJob{Queue: "queue:1:2:3:0"}, &river.InsertOpts{Queue: river.QueueDefault})
	require.NoError(t, err)
	<-j.db.(stuck).asked //nolint:forcetypeassert // made above
	end(errors.New("the actor ends"))
	begun := time.Now()
	require.NoError(t, j.serve(ctx, t.Context(), client, nil))
	<-client.Stopped()
	require.Less(t, time.Since(begun), stopTime/2)
}
