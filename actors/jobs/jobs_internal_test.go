package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// idle has no jobs.
func idle(c *river.Config, _ zerolog.Logger) {
	c.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 1}
	river.AddWorker(c.Workers, river.WorkFunc(func(context.Context, *river.Job[nothing]) error { return nil }))
}

type nothing struct{}

func (nothing) Kind() string { return "nothing" }

// A start that is given up on at any moment leaves no client that runs; Stop never
// runs beside Start, which the race detector sees.
func TestAStartOfRiverThatIsGivenUpEndsItsClient(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	gone := errors.New("the actor ends")
	j := New(Work{Add: idle})
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

func TestAJobThatWaitsDoesNotDelayTheEndOfItsClient(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	begun, resumed := make(chan struct{}), false
	j := New(Work{
		Add: func(c *river.Config, _ zerolog.Logger) {
			c.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 1}
			river.AddWorker(c.Workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[nothing]) error {
				close(begun)
				<-ctx.Done()
				return ctx.Err()
			}))
		},
		Started: func() { resumed = true },
	})
	client, err := j.newClient(db.Pool, zerolog.Nop())
	require.NoError(t, err)
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	require.NoError(t, start(ctx, t.Context(), client))
	_, err = client.Insert(ctx, nothing{}, nil)
	require.NoError(t, err)
	<-begun
	end(errors.New("the actor ends"))
	stopped := time.Now()
	require.NoError(t, j.serve(ctx, t.Context(), client, nil))
	<-client.Stopped()
	require.Less(t, time.Since(stopped), stopTime/2)
	require.True(t, resumed)
}

// River asks every 2 s, for each queue.
func TestRiverSeldomReadsWhetherItsQueuesArePaused(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	exec := newDriver(db.Pool).GetExecutor()
	ask := &riverdriver.QueueGetParams{Name: "some"}
	_, err := exec.QueueGet(t.Context(), ask)
	require.Error(t, err, "an answer that is none is not kept")
	_, err = db.Pool.Exec(t.Context(), `INSERT INTO river_queue (name, updated_at) VALUES ('some', now())`)
	require.NoError(t, err)
	for range 2 {
		queue, err := exec.QueueGet(t.Context(), ask)
		require.NoError(t, err)
		require.Nil(t, queue.PausedAt)
		_, err = db.Pool.Exec(t.Context(), `UPDATE river_queue SET paused_at = now()`)
		require.NoError(t, err)
	}
}

func TestNoClientIsStartedBeforeItIsNeeded(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	asked := 0
	started := make(chan int, 1)
	j := New(Work{
		Add:     idle,
		Started: func() { started <- asked },
		Needed: func(context.Context) (bool, error) {
			asked++
			if asked == 1 {
				return true, errors.New("nobody knows")
			}
			return asked > 2, nil
		},
	})
	j.Use(db.Pool)
	ctx, end := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() { ended <- j.run(ctx, t.Context(), zerolog.Nop(), func(string) {}) }()
	require.Equal(t, 3, <-started)
	end(errors.New("the test ends"))
	require.NoError(t, <-ended)
}
