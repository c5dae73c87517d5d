package database

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestHorizonWatch(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	old := horizon{xmin: "7", age: busyHorizon, holder: "a dump"}
	t.Run("tells of a horizon that stands still while transactions go by", func(t *testing.T) {
		t.Parallel()
		w := horizonWatch{limit: time.Minute}
		require.Nil(t, w.observe(start, horizon{xmin: "7", age: 1}))
		require.Nil(t, w.observe(start.Add(59*time.Second), old))
		require.Equal(t, &HeldBack{By: "a dump", Since: start, Transactions: busyHorizon}, w.observe(start.Add(time.Minute), old))
		require.Nil(t, w.observe(start.Add(61*time.Second), horizon{}))
	})
	t.Run("is content with one that moves", func(t *testing.T) {
		t.Parallel()
		w := horizonWatch{limit: time.Minute}
		for i := range 10 {
			require.Nil(t, w.observe(start.Add(time.Duration(i)*time.Minute), horizon{xmin: string(rune('a' + i)), age: 1 << 20}))
		}
	})
	t.Run("is content where nothing is written", func(t *testing.T) {
		t.Parallel()
		w := horizonWatch{limit: time.Minute}
		for i := range 10 {
			require.Nil(t, w.observe(start.Add(time.Duration(i)*time.Minute), horizon{xmin: "7", age: 3}))
		}
	})
}

// Whoever holds an old snapshot is named, and forgotten when it is gone.
func TestPoolNamesWhoHoldsVacuumBack(t *testing.T) {
	t.Parallel()
	server := serve(t, config(made(t)))
	b := startPool(t, PoolConfig{Source: server.pg.ConnConfig, HorizonEvery: 20 * time.Millisecond, HorizonLimit: 100 * time.Millisecond})
	cfg := must(server.pg.ConnConfig(t.Context()))(t)
	holder := must(pgx.ConnectConfig(t.Context(), cfg))(t)
	must(holder.Exec(t.Context(), `SET application_name = 'a long dump'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`))(t)
	for range busyHorizon {
		must(b.sink.current().Exec(t.Context(), `SELECT pg_current_xact_id()`))(t)
	}
	require.Eventually(t, func() bool { return b.pool.HeldBack() != nil }, time.Minute, 5*time.Millisecond)
	require.Contains(t, b.pool.HeldBack().By, "(a long dump)")
	require.NoError(t, holder.Close(t.Context()))
	require.Eventually(t, func() bool { return b.pool.HeldBack() == nil }, time.Minute, 5*time.Millisecond)
}
