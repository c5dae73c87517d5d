package migrations_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"takt/migrations"
	"takt/store"
	"takt/store/postgres"
	"takt/store/storetest"
)

// tables are those of takt 0.1.0 and their columns. The versions are not data.
const tables = `
SELECT table_name, array_agg(quote_ident(column_name) ORDER BY ordinal_position) FROM information_schema.columns
WHERE table_schema = 'public' AND table_name NOT IN ('takt_migrations', 'river_migration', 'sealed_values')
GROUP BY table_name`

// content returns every row of the tables, by those columns.
func content(t *testing.T, conn *pgx.Conn, columns map[string][]string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for table, names := range columns {
		rows, err := conn.Query(t.Context(), `SELECT row_to_json(x)::text FROM (SELECT `+joined(names)+` FROM `+table+`) x ORDER BY 1`)
		require.NoError(t, err, table)
		all[table], err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err, table)
	}
	return all
}

func joined(names []string) (list string) {
	for i, n := range names {
		if i > 0 {
			list += ", "
		}
		list += n
	}
	return list
}

// restore fills a database from testdata/0.1.0.sql, which pg_dump wrote of one that takt
// 0.1.0 had made and used.
func restore(t *testing.T) (cfg *pgx.ConnConfig, conn *pgx.Conn) {
	t.Helper()
	dump, err := os.ReadFile("testdata/0.1.0.sql")
	require.NoError(t, err)
	cfg = storetest.Config(t)
	conn = connect(t, cfg)
	_, err = conn.Exec(t.Context(), string(dump))
	require.NoError(t, err)
	return cfg, conn
}

func TestADatabaseOfRelease010IsUpgradedAndWorks(t *testing.T) {
	t.Parallel()
	cfg, conn := restore(t)
	rows, err := conn.Query(t.Context(), tables)
	require.NoError(t, err)
	columns, table, names := map[string][]string{}, "", []string(nil)
	_, err = pgx.ForEachRow(rows, []any{&table, &names}, func() error {
		columns[table] = slices.Clone(names)
		return nil
	})
	require.NoError(t, err)
	before := content(t, conn, columns)
	require.Len(t, before, 26)
	for table, rows := range before {
		if table != "river_client" && table != "river_client_queue" && table != "river_leader" {
			require.NotEmpty(t, rows, "the dump has rows of %s", table)
		}
	}

	require.NoError(t, migrations.Up(t.Context(), cfg))
	require.Equal(t, before, content(t, conn, columns), "what was there is as it was")
	fresh := storetest.New(t)
	require.Equal(t, describe(t, connect(t, fresh.Config)), describe(t, conn), "the same schema as of a new database")

	pool, err := pgxpool.NewWithConfig(t.Context(), poolConfig(t, cfg))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db := postgres.New()
	db.Use(pool)
	works(t, db)
	broken, err := postgres.NewInvariants(db, nil).Check(t.Context())
	require.NoError(t, err)
	for _, i := range broken {
		require.Zero(t, i.Broken, "%s: %v", i.Name, i.Examples)
	}
}

func poolConfig(t *testing.T, cfg *pgx.ConnConfig) *pgxpool.Config {
	t.Helper()
	pc, err := pgxpool.ParseConfig(cfg.ConnString())
	require.NoError(t, err)
	return pc
}

// works uses what takt 0.1.0 left: a completed build, a failed one, one that mac-mini-3
// builds, one that waits, and three throttled actions of which one was sent.
func works(t *testing.T, db *postgres.DB) {
	t.Helper()
	ctx := t.Context()
	builds, workers := postgres.NewBuilds(db, postgres.BuildsConfig{}), postgres.NewWorkers(db)
	list, _, err := builds.List(ctx, store.BuildFilter{}, store.Page{})
	require.NoError(t, err)
	states := map[string]store.BuildState{}
	for _, b := range list {
		states[b.ID] = b.State
	}
	const held, waiting = "GndwZlIdmYTwMg6ThepPW", "UozDfl6_u_jZivkpV9BgV"
	require.Equal(t, map[string]store.BuildState{
		"GaK6oUkEJ7DjtFANIRQMJ": store.Completed, "TgsLq1miQsB8ToZ9i1Chi": store.Failed, held: store.Building, waiting: store.Pending,
	}, states)
	lines := storetest.Logs(t, db, held, 0)
	require.Equal(t, "Assigned to worker mac-mini-3", lines[1].Message)
	require.Equal(t, "compiling", lines[2].Message)
	told, err := postgres.NewDashboard(db).Milestones(ctx, held)
	require.NoError(t, err)
	require.Empty(t, told, "0.1.0 wrote no facts")

	mac, err := workers.Show(ctx, "mac-mini-3")
	require.NoError(t, err)
	require.Equal(t, store.Busy, mac.Status)
	heartbeat := store.Heartbeat{BuildID: held, WorkerID: mac.ID, Attempt: 1, Logs: []store.LogLine{{Level: "info", Message: "still here"}}}
	_, err = builds.RecordHeartbeat(ctx, heartbeat)
	require.NoError(t, err)
	_, err = builds.Finish(ctx, store.Result{BuildID: held, WorkerID: mac.ID, Attempt: 1, ErrorMessage: "no more disk"})
	require.NoError(t, err)

	storetest.Build(t, db)
	queue := postgres.NewQueue(db, postgres.QueueConfig{})
	other := storetest.Worker(t, db)
	handed, err := queue.Assign(ctx, []store.Poll{{Worker: other.Token.Worker, WorkerID: other.ID, Shown: other.Token.Counter, Used: other.Token.Counter}})
	require.NoError(t, err)
	require.NotNil(t, handed[0].Jobs.First(), handed[0])
	require.Equal(t, waiting, handed[0].Jobs.First().BuildID, "the older of those that wait")
	told, err = postgres.NewDashboard(db).Milestones(ctx, waiting)
	require.NoError(t, err)
	require.Len(t, told, 1)
	require.Equal(t, other.ID, told[0].WorkerID)

	throttle, err := postgres.NewThrottle(db)
	require.NoError(t, err)
	const name = "queue:62515:3:7:0"
	claims, err := throttle.Claim(ctx, store.ClaimRequest{PortalID: 62515, Queues: []string{name}, Limit: 10, Lease: time.Minute})
	require.NoError(t, err)
	require.Len(t, claims.Claims, 1)
	require.Len(t, claims.Claims[0].Actions, 2)
	status, _, err := throttle.Queues(ctx, 62515, true, store.Page{})
	require.NoError(t, err)
	require.Equal(t, name, status[0].ID)
	require.Equal(t, 2, status[0].InFlight)
	repos, _, err := postgres.NewDashboard(db).Repos(ctx, "2bvk3b3cdwfslmm3", store.Page{})
	require.NoError(t, err)
	require.Len(t, repos, 2)
	timeouts, ok, err := queue.Timeouts(ctx)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 4*time.Minute, timeouts.BuildTimeout)
}

// later migrates a database as a later release does, which adds two versions.
func later(t *testing.T, dirty bool) (cfg *pgx.ConnConfig, conn *pgx.Conn, newest uint) {
	t.Helper()
	cfg = storetest.Config(t)
	conn = connect(t, cfg)
	require.NoError(t, migrations.Up(t.Context(), cfg))
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT version FROM takt_migrations`).Scan(&newest))
	_, err := conn.Exec(t.Context(), `ALTER TABLE builds ADD COLUMN later text`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `UPDATE takt_migrations SET version = version + 2, dirty = $1`, dirty)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `INSERT INTO river_migration (line, version) VALUES ('main', 999)`)
	require.NoError(t, err)
	return cfg, conn, newest
}

// During a rolling upgrade, and after a rollback.
func TestADatabaseOfALaterReleaseIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	cfg, conn, newest := later(t, false)
	before := describe(t, conn)
	var found, known uint
	require.NoError(t, migrations.UpOrLater(func(v, n uint) { found, known = v, n })(t.Context(), cfg))
	require.Equal(t, []uint{newest + 2, newest}, []uint{found, known})
	require.NoError(t, migrations.Up(t.Context(), cfg))
	require.Equal(t, before, describe(t, conn))
	var version uint
	var dirty bool
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT version, dirty FROM takt_migrations`).Scan(&version, &dirty))
	require.Equal(t, newest+2, version)
	require.False(t, dirty)

	require.NoError(t, migrations.UpOrLater(func(uint, uint) { t.Error("this release made it") })(t.Context(), storetest.New(t).Config))
}

func TestADatabaseThatALaterReleaseLeftHalfMigratedIsRefused(t *testing.T) {
	t.Parallel()
	cfg, conn, newest := later(t, true)
	require.ErrorContains(t, migrations.Up(t.Context(), cfg), "start that release again")
	var row []byte
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT to_json(m) FROM takt_migrations m`).Scan(&row))
	var is struct {
		Version uint
		Dirty   bool
	}
	require.NoError(t, json.Unmarshal(row, &is))
	require.Equal(t, newest+2, is.Version, "left for the later release")
	require.True(t, is.Dirty)
}

// Releases before 0028 know nothing of what these builds need, and would run them without it.
func TestTheWayBackFailsBuildsThatNeedInputs(t *testing.T) {
	t.Parallel()
	db := storetest.New(t)
	params := func(s *store.Submission) { s.Inputs = &store.Inputs{Params: store.Params{"A": "1"}} }
	held := storetest.Build(t, db.DB, params)
	w := storetest.Worker(t, db.DB, func(r *store.Registration) { r.Labels = store.Labels{"takt:env": "1", "pool": "a"} })
	handed, err := postgres.NewQueue(db.DB, postgres.QueueConfig{}).Assign(t.Context(), []store.Poll{{Worker: w.Token.Worker, WorkerID: w.ID, Shown: w.Token.Counter, Used: w.Token.Counter}})
	require.NoError(t, err)
	require.Equal(t, held.ID, handed[0].Jobs.First().BuildID)
	waiting, plain := storetest.Build(t, db.DB, params), storetest.Build(t, db.DB)

	conn := connect(t, db.Pool.Config().ConnConfig)
	downs, err := fs.Glob(migrations.Files(), "*.down.sql")
	require.NoError(t, err)
	for _, file := range slices.Backward(downs) {
		if file >= "0028" {
			text, err := fs.ReadFile(migrations.Files(), file)
			require.NoError(t, err)
			_, err = conn.Exec(t.Context(), string(text))
			require.NoError(t, err)
		}
	}
	state := func(id string) (state string, reason *string) {
		t.Helper()
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT state, error_message FROM builds WHERE id = $1 AND (completed_at IS NULL) = (state = 'pending')`, id).Scan(&state, &reason))
		return state, reason
	}
	for _, id := range []string{held.ID, waiting.ID} {
		is, reason := state(id)
		require.Equal(t, string(store.Failed), is)
		require.Contains(t, *reason, "submit it again")
		var line string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT message FROM build_logs l JOIN builds b ON b.seq = l.build AND b.log_lines = l.number WHERE b.id = $1`, id).Scan(&line))
		require.Equal(t, *reason, line)
	}
	is, _ := state(plain.ID)
	require.Equal(t, string(store.Pending), is)
	var free, labels string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT held || ' ' || status, labels::text FROM workers`).Scan(&free, &labels))
	require.Equal(t, []string{"0 idle", `{"pool": "a"}`}, []string{free, labels})
}
