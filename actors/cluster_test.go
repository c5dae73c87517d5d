package actors_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors"
	"takt/actors/queue"
	"takt/actors/throttle"
	"takt/storage"
	"takt/store"
	"takt/store/hubspot"
	"takt/store/postgres"
	"takt/store/seal"
	"takt/store/storetest"
)

func TestMain(m *testing.M) { storetest.Main(m) }

// node is one controller's tree over a database, without HTTP.
type node struct {
	*actors.Tree
	db *postgres.DB
}

func startNode(t *testing.T, database *pgx.ConnConfig, queue queue.Config) node {
	t.Helper()
	db := postgres.New()
	q := postgres.NewQueue(db, postgres.QueueConfig{})
	th := must(postgres.NewThrottle(db))(t)
	tree := actors.New(actors.Config{
		Database: func(context.Context) (*pgx.ConnConfig, error) { return database.Copy(), nil },
		Queue:    queue,
	}, actors.Deps{
		Keys:   postgres.NewKeys(db, &store.KeyRing{}),
		Logger: zerolog.New(t.Output()).Level(zerolog.WarnLevel), DB: db, Rows: postgres.NewFiles(db), Heijunka: postgres.NewHeijunka(db), Invariants: postgres.NewInvariants(db, nil),
		Builds: &actors.Builds{
			Queue: q, Monitor: q, Tokens: store.NewWorkerTokens(store.WorkerTokenTTL, make([]byte, 32)), Files: openFiles(t),
		},
		Throttle:    &throttle.Deps{Store: th, HubSpot: hubspot.NewClient(hubspot.Config{}), Keys: seal.NewRing(seal.Key{})},
		Deployments: &actors.Deployments{Store: postgres.NewDeployments(db)},
	})
	require.NoError(t, tree.Start(t.Context(), func(ctx context.Context) error { <-ctx.Done(); return nil }))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(t.Context()), time.Minute, context.DeadlineExceeded)
		defer cancel()
		require.Empty(t, tree.Stop(ctx))
	})
	require.Eventually(t, tree.Ready, time.Minute, 10*time.Millisecond)
	return node{Tree: tree, db: db}
}

// openFiles returns storage on a directory of this test's own.
func openFiles(t *testing.T) *storage.Files {
	t.Helper()
	local := must(storage.OpenLocal(t.TempDir(), seal.NewRing(seal.Key{})))(t)
	files := must(storage.NewFiles(storage.ModeLocal, local, nil))(t)
	t.Cleanup(func() { require.NoError(t, files.Close()) })
	return files
}

// Changes lets plots read nothing while there is no work anywhere, so each controller must
// learn of each build that becomes pending, also if it was handed out before the next count.
func TestEachControllerLearnsThatABuildBecamePending(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	here, there := startNode(t, database.Config, queue.Config{}), startNode(t, database.Config, queue.Config{})
	changes := func() uint64 { count, _ := there.Queue.Counted(); return count.Changes }
	before := changes()
	for range 3 {
		storetest.Build(t, here.db, func(*store.Submission) {})
		require.Eventually(t, func() bool { return changes() > before }, time.Minute, time.Millisecond)
		before = changes()
	}
	must(database.Pool.Exec(t.Context(), `UPDATE builds SET state = 'cancelled', completed_at = now()`))(t)
	cut(t, database)
	require.Eventually(t, func() bool { return changes() > before }, time.Minute, time.Millisecond, "builds may have become pending meanwhile")
}

// TestLostConnectionsHealByThemselves cuts every connection to the database,
// the listener's too, and wants the notification to work again.
func TestLostConnectionsHealByThemselves(t *testing.T) {
	t.Parallel()
	database := storetest.New(t)
	never := queue.Config{Recount: time.Hour}
	here, there := startNode(t, database.Config, never), startNode(t, database.Config, never)

	cut(t, database)
	w := storetest.Worker(t, database.DB)
	require.Eventually(t, func() bool { // 503 until the pool is back
		await, err := there.Queue.Arrive(t.Context(), w.Request(), 0)
		if err == nil {
			_, err = await(t.Context(), nil)
		}
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	parked := must(there.Queue.Arrive(t.Context(), w.Request(), time.Minute))(t)
	require.Eventually(t, func() bool { return there.Queue.Stats().Parked == 1 }, time.Minute, time.Millisecond)

	var b store.Build
	require.Eventually(t, func() bool {
		var err error
		b, err = postgres.NewBuilds(here.db, postgres.BuildsConfig{}).Submit(t.Context(), store.Submission{
			ID: store.NewID(), Platform: store.IOS, TokenHash: store.HashToken("x"), Source: storetest.File("source.zip", "x"),
		})
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	reply := must(parked(t.Context(), nil))(t)
	require.NotNil(t, reply.Jobs.First())
	require.Equal(t, b.ID, reply.Jobs.First().BuildID)
	for _, n := range []node{here, there} {
		for _, child := range n.Snapshot(false).Children {
			require.Zero(t, child.Restarts, "%s: losing connections is no crash", child.Path)
		}
	}
}

func cut(t *testing.T, database *storetest.Database) {
	t.Helper()
	must(database.Pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`))(t)
}

// must returns a function that returns v and fails its test for an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		require.NoError(tb, err)
		return v
	}
}
