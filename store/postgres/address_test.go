package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
)

// awaitBlocked waits until a statement of this database waits for a lock.
func (b *bundle) awaitBlocked() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		var n int
		err := b.Pool.QueryRow(b.t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n > 0
	}, 30*time.Second, time.Millisecond)
}

// A batch finds workers where it saw their rows. A row that somebody else is writing is
// passed over, and is found where it is then.
func TestAWorkerIsServedWhoseRowMoves(t *testing.T) {
	t.Parallel()
	for name, pending := range map[string]bool{"with a build": true, "while nothing is pending": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			moving, still := b.worker(), b.worker()
			moving.gets("") // learns where its row is
			still.gets("")
			want := []string{"", ""}
			if pending {
				want[0], want[1] = b.build().ID, b.build().ID
			}
			tx, err := b.Pool.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(t.Context()) }()
			_, err = tx.Exec(t.Context(), `UPDATE workers SET last_seen_at = now() WHERE id = $1`, moving.id)
			require.NoError(t, err)
			results := b.assign(moving.request(), still.request())
			require.Equal(t, store.PollLocked, results[0].Outcome)
			require.Equal(t, store.PollServed, results[1].Outcome)
			require.Equal(t, want[0], jobID(results[1]))
			require.NoError(t, tx.Commit(t.Context()))
			moving.gets(want[1])
			require.Equal(t, store.PollServed, moving.poll().Outcome)
		})
	}
}

// The other controller's polls move the rows that this one remembers.
func TestAWorkerIsFoundWhoseRowIsElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	here, there := b.queue, postgres.NewQueue(b.DB, postgres.QueueConfig{})
	clients := make([]*client, 50)
	for i := range clients {
		clients[i] = b.worker()
	}
	for round := range 6 {
		b.queue = []*postgres.Queue{here, there}[round/2%2]
		for _, c := range clients {
			c.gets("")
		}
	}
	b.exec(`VACUUM FULL workers`)
	b.queue = here
	for _, c := range clients {
		c.gets("")
	}
}

func TestOneIDRegisteredAtOnceIsOneWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	again := 0
	for range 8 {
		wg.Go(func() {
			reg, err := b.workers.Register(t.Context(), store.Registration{
				ID: "the-same", Name: "n",
			})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if reg.Again {
				again++
			}
		})
	}
	wg.Wait()
	require.Equal(t, 7, again)
}

// A worker whose row is where it was is served as it is now, not as its controller
// remembers it.
func TestAKnownWorkerIsServedAsItIsNow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		gets   bool
	}{
		"nothing changed":    {`SELECT`, true},
		"drained":            {`UPDATE workers SET draining = true`, false},
		"critical":           {`UPDATE workers SET critical = true`, false},
		"other platforms":    {`UPDATE workers SET platforms = '{android}'`, false},
		"moved in the table": {`UPDATE workers SET last_seen_at = now()`, true},
		"all is elsewhere":   {`VACUUM FULL workers`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.queue = postgres.NewQueue(b.DB, postgres.QueueConfig{SpareCritical: true})
			w, other := b.worker(), b.worker(takes(store.Android))
			w.gets("")
			other.gets("")
			b.exec(c.change)
			build := b.build()
			want := ""
			if c.gets {
				want = build.ID
			}
			w.gets(want)
			other.gets("")
		})
	}
}
