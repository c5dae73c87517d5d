package postgres_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// Statistics are mostly gathered while little is pending, and plans are kept. The
// plan for such a table has to be the right one for a long queue.
func TestAssignmentsNeverSortOrScanTheQueue(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	b := &fixture{Database: db, t: t}
	conn := must(pgx.ConnectConfig(t.Context(), db.Config))(t)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	constants := stringConstants(t)
	constants["claimOne"], constants["claimSeveral"] = postgres.ClaimSQL(1, 0), postgres.ClaimSQL(0, 1)
	must(conn.Exec(t.Context(), constants["sqlSession"]))(t)
	statements := map[string]string{ // and the indexes by which they find their rows, or the tables whose versions they know
		"sqlLockWorkers": "Backward using workers_number", "sqlLockRepeats": "using builds_held", "claimOne": "using builds_by_class", "claimSeveral": "using builds_in_order", "sqlPending": "using builds_by_class",
		"sqlAssignBuilds": "on builds", "sqlAssignWorkers": "on workers", "sqlPresence": "using workers_number", "sqlCountOwnClasses": "using builds_by_submitter_class", "sqlChanged": "using workers_number",
	}
	judge := func(when string) {
		for name, index := range statements {
			sql := constants[name]
			must(conn.Prepare(t.Context(), name+when, sql))(t)
			n := len(slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile(`\$\d`).FindAllString(sql, -1)))))
			arguments := strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ")
			rows := must(conn.Query(t.Context(), `EXPLAIN EXECUTE "`+name+when+`"(`+arguments+`)`, pgx.QueryExecModeSimpleProtocol))(t)
			lines := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
			p := strings.Join(lines, "\n")
			require.NotRegexp(t, `Sort Key: .*position|Seq Scan on (builds|workers)|Bitmap`, p, "%s, %s", name, when)
			require.Regexp(t, "(Index (Only )?Scan|Tid Scan) "+index+`\s`, p, "%s, %s", name, when)
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

// The throttle's table of actions has all that waits and all that ended lately;
// what its statements look for are a few rows of it, however few it had when they
// were planned.
func TestTheThrottleFindsItsRows(t *testing.T) {
	t.Parallel()
	b := throttle(t, 10, 1, store.Second)
	conn := must(pgx.ConnectConfig(t.Context(), b.Database.Config))(t)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	constants := stringConstants(t)
	must(conn.Exec(t.Context(), constants["sqlSession"]))(t)
	statements := map[string]int{
		"sqlClaim": 6, "sqlConfirm": 3, "sqlComplete": 3, "sqlFail": 8, "sqlRelease": 5, "sqlAccept": 5, "sqlRepeats": 3,
		"sqlForgetActions": 2, "sqlQueueErrors": 3,
	}
	judge := func(when string) {
		for name, arguments := range statements {
			must(conn.Prepare(t.Context(), name+" "+when, constants[name]))(t)
			rows := must(conn.Query(t.Context(), `EXPLAIN EXECUTE "`+name+` `+when+`"(`+strings.Repeat("NULL, ", arguments-1)+`NULL)`, pgx.QueryExecModeSimpleProtocol))(t)
			lines := must(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
			plan := strings.Join(lines, "\n")
			require.NotRegexp(t, `Seq Scan|Bitmap`, plan, "%s, %s", name, when)
			for i, line := range lines {
				if regexp.MustCompile(`Scan .*on (action_executions|river_job)`).MatchString(line) {
					require.Regexp(t, `(Index|TID) Cond: `, lines[i+1], "%s, %s: it reads all\n%s", name, when, plan)
				}
			}
			waits := strings.Count(plan, "action_executions_waiting")
			require.Equal(t, name == "sqlClaim", waits == 1, "%s, %s\n%s", name, when, plan)
			require.NotRegexp(t, `Index Cond: \(portal_id = [^)]*\)\n`, plan, "%s, %s: it reads all of a portal", name, when)
		}
	}
	judge("empty")
	b.accept(queueOf(1), 0, 20)
	judge("a few, not analyzed")
	b.exec(`ANALYZE`)
	judge("a few")
	b.accept(queueOf(2), 0, 3000)
	c := b.claim(10, queueOf(2))
	b.record(store.Outcome{Claim: c.Number, Done: idsOf(c)})
	b.exec(`ANALYZE`)
	judge("many")
	b.exec(`UPDATE action_executions SET state = 'completed', finished_at = now() WHERE callback_id <> '1-c0'`)
	b.exec(`VACUUM ANALYZE`)
	judge("one, and much that has ended")
}
