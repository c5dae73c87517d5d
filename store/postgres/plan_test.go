package postgres_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/storetest"
)

// Statistics are mostly gathered while little is pending, and plans are kept. The
// plan for such a table has to be the right one for a long queue.
func TestTheBatchNeverSortsOrScansTheQueue(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	b := &bundle{Database: db, t: t}
	conn, err := pgx.ConnectConfig(t.Context(), db.Config)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	constants := stringConstants(t)
	_, err = conn.Exec(t.Context(), constants["sqlSession"])
	require.NoError(t, err)
	_, err = conn.Prepare(t.Context(), "serve", constants["sqlServe"])
	require.NoError(t, err)
	_, err = conn.Prepare(t.Context(), "plain", constants["sqlServePlain"])
	require.NoError(t, err)

	plan := func(statement string, arguments int) string {
		rows, err := conn.Query(t.Context(), `EXPLAIN EXECUTE `+statement+`(`+strings.Repeat("NULL, ", arguments-1)+`NULL)`,
			pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return strings.Join(lines, "\n")
	}
	judge := func(when string) {
		p, plain := plan("serve", 19), plan("plain", 10)
		for _, p := range []string{p, plain} {
			require.NotRegexp(t, `Sort Key: .*place`, p, when)
			require.NotContains(t, p, "Seq Scan", when)
			require.NotContains(t, p, "Bitmap", when)
		}
		require.Contains(t, plain, "Index Scan using builds_queue ", when)
		for _, index := range []string{"builds_queue ", "builds_queue_ios ", "builds_queue_android "} {
			require.Contains(t, p, "Index Scan using "+index, when)
		}
	}
	judge("empty tables")
	b.exec(fill, 3000)
	for range 3 {
		storetest.Worker(t, b.DB)
	}
	b.exec(`ANALYZE`)
	judge("a long queue of one platform")
	b.exec(`UPDATE builds SET state = 'failed', completed_at = now()`)
	b.exec(`ANALYZE`)
	judge("history only")
	b.exec(`VACUUM ANALYZE`)
	judge("history only, vacuumed")
	for range 20 {
		storetest.Build(t, b.DB, func(s *store.Submission) { s.Platform = store.Android })
	}
	b.exec(`ANALYZE`)
	judge("few of the other platform")
}
