package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/rivertype"
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
	exec := newDriver(db.Pool, nil, nil).GetExecutor()
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
	var j *Jobs
	j = New(Work{
		Add:     idle,
		Started: func() { started <- asked },
		Needed: func(context.Context) (bool, error) {
			switch asked++; asked {
			case 1:
				return true, errors.New("nobody knows")
			case 2:
				j.every = time.Hour
				j.Check() // as a change does that comes right now
			}
			return asked > 2, nil
		},
	})
	j.every = time.Millisecond
	j.Use(db.Pool)
	ctx, end := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() { ended <- j.run(ctx, t.Context(), zerolog.Nop(), func(string) {}) }()
	select {
	case n := <-started:
		require.Equal(t, 3, n)
	case <-time.After(time.Minute):
		require.FailNow(t, "not started")
	}
	end(errors.New("the test ends"))
	require.NoError(t, <-ended)
}

type other struct{}

func (other) Kind() string { return "other" }

// A client that works only some queues, as on a controller without some services, leads while
// it is alone. It leaves interrupted jobs of other queues as they are, instead of discarding
// them, and ends leading when a client that works them has come, which rescues them.
func TestALeaderLeavesJobsOfOtherQueues(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	some := Work{Add: func(c *river.Config, _ zerolog.Logger) {
		c.Queues["some"] = river.QueueConfig{MaxWorkers: 1, FetchPollInterval: 100 * time.Millisecond}
		river.AddWorker(c.Workers, river.WorkFunc(func(context.Context, *river.Job[other]) error { return nil }))
	}}
	begin := func(work ...Work) *river.Client[pgx.Tx] {
		client, err := New(work...).newClient(db.Pool, zerolog.Nop())
		require.NoError(t, err)
		require.NoError(t, start(t.Context(), t.Context(), client))
		return client
	}
	is := func(kind, state string) func() bool {
		return func() bool {
			var found string
			require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT state::text FROM river_job WHERE kind = $1`, kind).Scan(&found))
			return found == state
		}
	}
	_, err := db.Pool.Exec(t.Context(), `INSERT INTO river_job (kind, queue, max_attempts, args, state, attempt, attempted_at) VALUES
		('nothing', 'default', 3, '{}', 'running', 1, now() - interval '1 hour'), ('other', 'some', 3, '{}', 'running', 1, now() - interval '1 hour')`)
	require.NoError(t, err)
	partial := begin(some)
	require.Eventually(t, is("other", "completed"), time.Minute, 50*time.Millisecond)
	require.True(t, is("nothing", "running")(), "rescued together with the other one")
	whole := begin(Work{Add: idle}, some)
	require.Eventually(t, is("nothing", "completed"), time.Minute, 50*time.Millisecond)
	for _, c := range []*river.Client[pgx.Tx]{whole, partial} {
		require.NoError(t, c.StopAndCancel(t.Context()))
	}

	// When its queues were not reported for some time, the whole client counts as gone.
	elect := func(works ...string) error {
		queues := map[string]river.QueueConfig{}
		for _, w := range works {
			queues[w] = river.QueueConfig{}
		}
		tx, err := newDriver(db.Pool, queues, nil).GetExecutor().Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(t.Context()) }()
		_, err = tx.LeaderAttemptElect(t.Context(), &riverdriver.LeaderElectParams{LeaderID: "me", TTL: time.Minute})
		return err
	}
	require.ErrorIs(t, elect("some"), rivertype.ErrNotFound)
	require.NoError(t, elect("some", "default", "a new one"))
	_, err = db.Pool.Exec(t.Context(), `UPDATE river_queue SET updated_at = now() - interval '16 minutes' WHERE name = 'default'`)
	require.NoError(t, err)
	require.NoError(t, elect("some"))
}
