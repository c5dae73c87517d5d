package postgres_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// Whoever keeps the pool hears of a lost connection, and not of a caller that
// went away.
func TestALostConnectionIsTold(t *testing.T) {
	t.Parallel()
	base := storetest.New(t)
	db := postgres.New()
	told := make(chan error, 100)
	db.OnLost(func(err error) { told <- err })
	db.Use(base.Pool)
	queue := postgres.NewQueue(db, postgres.QueueConfig{})

	gone, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	_, err := queue.Recount(gone, 1, nil, nil)
	require.ErrorIs(t, err, context.Canceled)
	must(queue.Recount(t.Context(), 1, nil, nil))(t)
	require.Empty(t, told)

	must(base.Pool.Exec(t.Context(), `CREATE FUNCTION end_it() RETURNS bigint LANGUAGE sql AS
		$$ SELECT pg_terminate_backend(pg_backend_pid())::int::bigint $$;
		ALTER TABLE worker_details ADD CHECK (end_it() > 0)`))(t)
	require.Equal(t, store.Unavailable, codeOf(postgres.NewWorkers(db).Register(t.Context(), store.Registration{ID: "w"})))
	require.NotEmpty(t, told)
}
