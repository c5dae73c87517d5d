package database

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/actors/pubsub"
	"takt/store/postgres"
	"takt/store/storetest/needs"
	"takt/store/storetest/pgtest"
)

// node returns a server that runs until the test ends, on the cluster that fill makes.
func node(t *testing.T, fill func(*pgtest.Node) error) *pgtest.Node {
	t.Helper()
	needs.Postgres(t)
	needs.Linux(t) // for its /proc, which finds the processes of a server
	dir := directory(t)
	require.NoError(t, os.Chmod(dir, 0o711))
	n := must(pgtest.New(dir))(t)
	require.NoError(t, fill(n))
	require.NoError(t, n.Start("-c", "fsync=off"))
	t.Cleanup(n.Stop)
	return n
}

func newPrimary(t *testing.T) *pgtest.Node {
	t.Helper()
	return node(t, func(n *pgtest.Node) error {
		from, err := madeNode()
		if err == nil {
			copyTree(t, from.Dir, n.Dir)
		}
		return err
	})
}

func newStandby(t *testing.T, primary *pgtest.Node) *pgtest.Node {
	t.Helper()
	answerOf(t, primary, "SELECT 1::text")
	n := node(t, func(n *pgtest.Node) error { return n.CopyOf(primary.Port, "standby") })
	soon(t, "the standby to stream", func() bool {
		return answerOf(t, primary, "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming' AND application_name = 'standby'") == "1"
	})
	return n
}

// answerOf runs sql at the node once it answers.
func answerOf(t *testing.T, n *pgtest.Node, sql string) string {
	t.Helper()
	return must(n.Ask(t.Context(), sql))(t)
}

// The primary stands still, and its standby is promoted. takt serves from there, whichever
// of the two the URL names first.
func TestAPrimaryThatHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		primaryFirst bool
		atOnce       bool // the standby is promoted before takt has noticed
	}{
		"named first":                   {primaryFirst: true},
		"named first, promoted at once": {primaryFirst: true, atOnce: true},
		"named second":                  {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary := newPrimary(t)
			standby := newStandby(t, primary)
			first, second := standby, primary
			if c.primaryFirst {
				first, second = primary, standby
			}
			source := must(URL(fmt.Sprintf("postgres://takt@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", first.Port, second.Port)))(t)
			db, bus := postgres.New(), pubsub.New()
			events := make(chan pubsub.Event, 100)
			defer bus.Subscribe(func(e pubsub.Event) { events <- e }, pubsub.JobAvailable, pubsub.ListenerResumed)()
			listener := NewListener(ListenerConfig{Source: source, Bus: bus})
			pool := NewPool(PoolConfig{Source: source, Sinks: []PoolUser{db, listener}})
			db.OnLost(pool.Lost)
			var late atomic.Bool // what closing a pool does a second later to calls that are still there
			sys := newSystemLogging(t, logger(t).Hook(zerolog.HookFunc(func(_ *zerolog.Event, _ zerolog.Level, message string) {
				if message == "database connection held for too long; closing it" {
					late.Store(true)
				}
			})))
			must(sys.StartRoot(t.Context(), "database", otp.SupSpec{
				Strategy: otp.RestForOne, Children: []otp.ChildSpec{pool.Spec(), listener.Spec()},
			}))(t)
			serves := func() error {
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("no answer"))
				defer cancel()
				return db.Ping(ctx)
			}
			require.NoError(t, serves())
			heard := func(topic string) {
				soon(t, topic, func() bool {
					select {
					case e := <-events:
						return e.Topic == topic
					default:
						return false
					}
				})
			}
			heard(pubsub.ListenerResumed)

			primary.Signal(syscall.SIGSTOP)
			hung := make(chan error, 1)
			var waited atomic.Bool
			go func() {
				err := db.Ping(context.WithoutCancel(t.Context()))
				waited.Store(late.Load())
				hung <- err
			}()
			if !c.atOnce {
				soon(t, "takt to notice", func() bool { return serves() != nil && !pool.Ready() })
			}
			answerOf(t, standby, "SELECT pg_promote()::text")
			promoted := time.Now()
			eventually(t, "takt to serve", serves)
			t.Logf("takt served %s after the promotion", time.Since(promoted).Round(time.Millisecond))
			select {
			case err := <-hung:
				require.Error(t, err)
			case <-time.After(time.Second):
				require.Fail(t, "a call still waits for the host that hangs")
			}
			require.False(t, waited.Load(), "calls are ended when takt leaves a host, not a second later")
			require.Zero(t, sys.Leaked())
			heard(pubsub.ListenerResumed)
			t.Logf("and listened after %s", time.Since(promoted).Round(time.Millisecond))
			answerOf(t, standby, "SELECT pg_notify('takt', 'job:available ios')::text")
			heard(pubsub.JobAvailable)
		})
	}
}

// A server stands still after a call on it was given up and while another one waits. The pool
// closes in time all the same: pgx would wait 15 s for the server to end such connections.
func TestAPoolOfAServerThatHangsCloses(t *testing.T) {
	t.Parallel()
	server := newPrimary(t)
	source := must(URL(server.URL()))(t)
	b := startPool(t, PoolConfig{Source: source, CheckEvery: time.Hour})
	soon(t, "the pool", b.pool.Ready)
	pool := b.sink.current()
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	soon(t, "a call to be given up", func() bool { // one that was on its way may still be answered
		given, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("given up"))
		defer cancel()
		return pool.Ping(given) != nil
	})
	waiting := make(chan error, 1)
	go func() { waiting <- pool.Ping(context.WithoutCancel(t.Context())) }()
	soon(t, "the other call", func() bool { return pool.Stat().AcquiredConns() > 0 })

	begun := time.Now()
	b.stop(t)
	took := time.Since(begun)
	t.Logf("the pool closed in %s", took.Round(time.Millisecond))
	require.Less(t, took, 7*time.Second, "of the ten that it may take")
	require.Zero(t, b.sys.Leaked())
	require.Error(t, <-waiting)
}

// The primary is killed, its standby promoted, and then the old primary comes back alone. takt
// remembers, also after a restart, that it has written to a later timeline.
func TestAFormerPrimaryIsRefused(t *testing.T) {
	t.Parallel()
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	dir := t.TempDir()
	run := func() (*postgres.DB, *Pool, *otp.System) {
		source := must(URL(fmt.Sprintf("postgres://takt@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable", primary.Port, standby.Port)))(t)
		db := postgres.New()
		pool := NewPool(PoolConfig{Source: NewGuard(dir).Source(source), Sinks: []PoolUser{db}})
		db.OnLost(pool.Lost)
		sys := newSystem(t)
		must(sys.StartRoot(t.Context(), "database", otp.SupSpec{Children: []otp.ChildSpec{pool.Spec()}}))(t)
		return db, pool, sys
	}
	db, pool, sys := run()
	eventually(t, "the database", func() error { return db.Ping(t.Context()) })

	primary.Kill()
	answerOf(t, standby, "SELECT pg_promote()::text")
	eventually(t, "takt to serve", func() error { return db.Ping(t.Context()) })
	standby.Kill() // away, for a while
	require.NoError(t, primary.Start("-c", "fsync=off"))
	require.Equal(t, "f", answerOf(t, primary, "SELECT pg_is_in_recovery()::text")[:1], "it takes writes")
	// The tree says why, also when takt noticed the outage before the old primary was back.
	soon(t, "takt to refuse it", func() bool {
		return strings.Contains(sys.Tree(false)[0].Children[0].Detail,
			"this PostgreSQL is on timeline 00000001, and takt has written to timeline 00000002: it was the primary before a failover")
	})
	require.Error(t, db.Ping(t.Context()))
	require.False(t, pool.Ready())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sys.Shutdown(ctx)

	db, pool, _ = run() // another process
	require.False(t, pool.Ready())
	require.NoError(t, standby.Start("-c", "fsync=off"))
	eventually(t, "takt to go on to the other host", func() error { return db.Ping(t.Context()) })

	// A database that was moved is another cluster.
	moved := node(t, (*pgtest.Node).Init)
	for _, at := range []*pgtest.Node{moved, primary} {
		answerOf(t, at, "SELECT 1::text")
		source := must(URL(at.URL()))(t)
		cfg := must(NewGuard(dir).Source(source)(t.Context()))(t)
		conn, err := dial(t.Context(), cfg)
		if at == primary {
			require.ErrorContains(t, err, "then remove "+filepath.Join(dir, "timelines"))
			continue
		}
		require.NoError(t, err)
		require.NoError(t, conn.Close(t.Context()))
	}
}

// A hosted service may not let takt read the timeline. takt works there without its guard.
func TestADatabaseThatHidesItsTimeline(t *testing.T) {
	t.Parallel()
	n := newPrimary(t)
	answerOf(t, n, "SELECT 1::text")
	admin := must(pgx.Connect(t.Context(), n.URL()))(t)
	defer admin.Close(t.Context()) // a test's connection
	must(admin.Exec(t.Context(), "CREATE ROLE app LOGIN; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC"))(t)
	source := must(URL(strings.Replace(n.URL(), "takt@", "app@", 1)))(t)
	dir := t.TempDir()
	cfg := must(NewGuard(dir).Source(source)(t.Context()))(t)
	require.NoError(t, must(dial(t.Context(), cfg))(t).Close(t.Context()))
	require.NoFileExists(t, filepath.Join(dir, timelines))
}

func TestHostsOfAURL(t *testing.T) {
	t.Parallel()
	source := must(URL("postgres://me@one:1,two:2/builds?sslmode=prefer"))(t)
	cfg := must(source(t.Context()))(t)
	require.NotNil(t, cfg.ValidateConnect, "the host has to take writes")
	all := hosts(cfg)
	require.Len(t, all, 2)
	for i, host := range []string{"one", "two"} {
		require.Equal(t, host, all[i].Host)
		require.EqualValues(t, i+1, all[i].Port)
		require.NotNil(t, all[i].TLSConfig)
		require.Len(t, all[i].Fallbacks, 1, "the same host without TLS")
		require.Equal(t, host, all[i].Fallbacks[0].Host)
	}
	source = must(URL("postgres://me@one/builds"))(t)
	cfg = must(source(t.Context()))(t)
	require.Nil(t, cfg.ValidateConnect)
}
