package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/actors/otp"
	"takt/migrations"
	"takt/store/backoff"
	"takt/store/seal"
)

// fakeSink records what the pool tells its users.
type fakeSink struct {
	mu    sync.Mutex
	pool  *pgxpool.Pool
	uses  int
	drops []error
}

func (s *fakeSink) Use(pool *pgxpool.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = pool
	s.uses++
}

func (s *fakeSink) Drop(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = nil
	s.drops = append(s.drops, cause)
}

func (s *fakeSink) current() *pgxpool.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool
}

// outageLog records the suspensions of a system's processes.
type outageLog struct {
	mu       sync.Mutex
	details  []string
	restarts int
}

func (w *outageLog) observe(e otp.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.Kind {
	case otp.EventSuspended:
		w.details = append(w.details, e.Detail)
	case otp.EventRestarting:
		w.restarts++
	default:
	}
}

func (w *outageLog) seen() (last string, restarts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.details); n > 0 {
		last = w.details[n-1]
	}
	return last, w.restarts
}

// poolFixture is a pool in a system of its own, away from the server's.
type poolFixture struct {
	sys     *otp.System
	pool    *Pool
	sink    *fakeSink
	outages *outageLog
	log     *logBook
}

// logBook is a log that can be read while it is written.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func startPool(t *testing.T, cfg PoolConfig) *poolFixture {
	t.Helper()
	b := &poolFixture{sink: &fakeSink{}, outages: &outageLog{}, log: &logBook{}}
	b.sys = otp.New(otp.Options{Logger: zerolog.New(io.MultiWriter(t.Output(), b.log)), OnEvent: b.outages.observe})
	cfg.Sinks = append(cfg.Sinks, b.sink)
	if cfg.Backoff == (backoff.Backoff{}) {
		cfg.Backoff = backoff.Backoff{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond}
	}
	if cfg.CheckEvery == 0 {
		cfg.CheckEvery = 20 * time.Millisecond
	}
	b.pool = NewPool(cfg)
	t.Cleanup(func() { b.stop(t) })
	must(b.sys.StartRoot(t.Context(), "database", otp.SupSpec{Children: []otp.ChildSpec{b.pool.Spec()}}))(t)
	return b
}

func (b *poolFixture) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	b.sys.Shutdown(ctx)
}

func TestPool(t *testing.T) {
	t.Parallel()
	server := serve(t, config(made(t)))
	source := server.pg.ConnConfig

	t.Run("migrates first, then hands itself out with time limits", func(t *testing.T) {
		t.Parallel()
		var migrated atomic.Int32
		b := startPool(t, PoolConfig{Source: source, Migrate: func(ctx context.Context, cfg *pgx.ConnConfig) error {
			migrated.Add(1)
			conn, err := pgx.ConnectConfig(ctx, cfg)
			if err != nil {
				return err
			}
			return conn.Close(ctx)
		}})
		require.True(t, b.pool.Ready())
		require.EqualValues(t, 1, migrated.Load())
		var limits string
		require.NoError(t, b.sink.current().QueryRow(t.Context(),
			`SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'))`).Scan(&limits))
		require.Equal(t, "30s 2s 15s", limits)
		since, ok := b.pool.ReadySince()
		require.True(t, ok)
		require.WithinDuration(t, time.Now(), since, time.Minute)
		require.EqualValues(t, 10, b.pool.Stat().MaxConns())
		b.stop(t)
		require.False(t, b.pool.Ready())
		require.Nil(t, b.pool.Stat())
		require.Nil(t, b.sink.current())
	})
	t.Run("starts suspended when the login is refused, and says so", func(t *testing.T) {
		t.Parallel()
		var repaired atomic.Bool
		b := startPool(t, PoolConfig{Source: func(ctx context.Context) (*pgx.ConnConfig, error) {
			cfg, err := source(ctx)
			if err == nil && !repaired.Load() {
				cfg.Password = "wrong"
			}
			return cfg, err
		}})
		require.False(t, b.pool.Ready())
		detail, _ := b.outages.seen()
		require.Contains(t, detail, "refuses the login")
		require.NotContains(t, detail, "wrong")
		repaired.Store(true)
		soon(t, "the pool", b.pool.Ready)
		require.NotNil(t, b.sink.current())
	})
	t.Run("starts suspended when the database does not exist, and says so", func(t *testing.T) {
		t.Parallel()
		b := startPool(t, PoolConfig{Source: func(ctx context.Context) (*pgx.ConnConfig, error) {
			cfg, err := source(ctx)
			if err == nil {
				cfg.Database = "nowhere"
			}
			return cfg, err
		}})
		detail, _ := b.outages.seen()
		require.Contains(t, detail, "does not exist")
	})
	t.Run("is suspended while migrations fail", func(t *testing.T) {
		t.Parallel()
		var tries atomic.Int32
		b := startPool(t, PoolConfig{Source: source, Migrate: func(context.Context, *pgx.ConnConfig) error {
			if tries.Add(1) < 4 {
				return errors.New("no permission")
			}
			return nil
		}})
		soon(t, "the pool", b.pool.Ready)
		detail, restarts := b.outages.seen()
		require.Contains(t, detail, "migrating the database: no permission")
		require.Zero(t, restarts)
	})
	t.Run("does not start on a database of an earlier build", func(t *testing.T) {
		t.Parallel()
		query(t, server.pg, "CREATE DATABASE earlier")
		earlier := func(ctx context.Context) (*pgx.ConnConfig, error) {
			cfg, err := source(ctx)
			if err == nil {
				cfg.Database = "earlier"
			}
			return cfg, err
		}
		cfg := must(earlier(t.Context()))(t)
		conn := must(pgx.ConnectConfig(t.Context(), cfg))(t)
		must(conn.Exec(t.Context(), "CREATE TABLE worker_details ()"))(t)
		require.NoError(t, conn.Close(t.Context()))

		sys := otp.New(otp.Options{Logger: logger(t)})
		pool := NewPool(PoolConfig{Source: earlier, Migrate: migrations.Up})
		_, err := sys.StartRoot(t.Context(), "database", otp.SupSpec{Children: []otp.ChildSpec{pool.Spec()}})
		require.ErrorIs(t, err, migrations.ErrEarlierBuild)
		require.ErrorContains(t, err, "use an empty database")
		require.Empty(t, sys.Shutdown(t.Context()))
	})
	t.Run("does not start on a database that its keys do not open", func(t *testing.T) {
		t.Parallel()
		sys := otp.New(otp.Options{Logger: logger(t)})
		pool := NewPool(PoolConfig{Source: source, Migrate: func(context.Context, *pgx.ConnConfig) error {
			return fmt.Errorf("checking: %w", seal.ErrUnknownKey)
		}})
		_, err := sys.StartRoot(t.Context(), "database", otp.SupSpec{Children: []otp.ChildSpec{pool.Spec()}})
		require.ErrorIs(t, err, seal.ErrUnknownKey)
		require.Empty(t, sys.Shutdown(t.Context()))
	})
	t.Run("does not hold up the start for a long migration", func(t *testing.T) {
		t.Parallel()
		begun := make(chan struct{})
		b := startPool(t, PoolConfig{Source: source, StartWait: 50 * time.Millisecond, Migrate: func(ctx context.Context, _ *pgx.ConnConfig) error {
			close(begun)
			<-ctx.Done()
			return context.Cause(ctx)
		}})
		<-begun
		require.False(t, b.pool.Ready())
		b.stop(t)
	})
	t.Run("stays when one connection dies", func(t *testing.T) {
		t.Parallel()
		b := startPool(t, PoolConfig{Source: func(ctx context.Context) (*pgx.ConnConfig, error) {
			cfg, err := source(ctx)
			if err == nil {
				cfg.RuntimeParams["application_name"] = "one dies"
			}
			return cfg, err
		}})
		query(t, server.pg, "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE application_name = 'one dies'")
		b.pool.Lost(errors.New("told by a user"))
		eventually(t, "a new connection", func() error { return b.sink.current().Ping(t.Context()) })
		require.True(t, b.pool.Ready())
		require.Equal(t, 1, b.sink.uses)
	})
	t.Run("stays when all its connections are busy, and reports the waits", func(t *testing.T) {
		t.Parallel()
		b := startPool(t, PoolConfig{Source: source, Size: 1, AnswerTimeout: 100 * time.Millisecond})
		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				must(b.sink.current().Exec(t.Context(), "SELECT pg_sleep(0.3)"))(t)
			})
		}
		group.Wait()
		soon(t, "the report", func() bool { return strings.Contains(b.log.String(), "calls wait long for a database connection") })
		require.Equal(t, 1, b.sink.uses)
	})
	t.Run("lets queries finish, then cancels them, when it stops", func(t *testing.T) {
		t.Parallel()
		b := startPool(t, PoolConfig{Source: source, Drain: 3 * time.Second})
		pool := b.sink.current()
		short, long := make(chan error, 1), make(chan error, 1)
		go func() { _, err := pool.Exec(t.Context(), "SELECT pg_sleep(0.4)"); short <- err }()
		go func() { _, err := pool.Exec(t.Context(), "SELECT pg_sleep(600)"); long <- err }()
		soon(t, "the queries", func() bool { return pool.Stat().AcquiredConns() == 2 })
		begun := time.Now()
		b.stop(t)
		require.Less(t, time.Since(begun), time.Minute)
		require.NoError(t, <-short)
		require.Equal(t, "57014", sqlState(<-long), "cancelled in the database")
		require.Error(t, pool.Ping(t.Context()))
	})
	t.Run("does not wait for ever for somebody who keeps a connection", func(t *testing.T) {
		t.Parallel()
		b := startPool(t, PoolConfig{Source: source, Drain: 50 * time.Millisecond})
		kept := must(b.sink.current().Acquire(t.Context()))(t)
		done := make(chan struct{})
		go func() { defer close(done); b.stop(t) }()
		soon(t, "the connection to be cut", func() bool { return kept.Ping(t.Context()) != nil })
		kept.Release()
		<-done
	})
}

func TestPoolOutage(t *testing.T) {
	t.Parallel()
	dir := made(t)
	first := serve(t, config(dir))
	var asked atomic.Int32
	source := func(ctx context.Context) (*pgx.ConnConfig, error) { asked.Add(1); return first.pg.ConnConfig(ctx) }
	b := startPool(t, PoolConfig{Source: source, AnswerTimeout: 200 * time.Millisecond, ConnectTimeout: 300 * time.Millisecond})
	soon(t, "the pool", b.pool.Ready) // its first connection may be late

	t.Run("the server stops: users lose the pool at once", func(t *testing.T) { // builds on the step before
		running := make(chan error, 1)
		pool := b.sink.current()
		go func() { _, err := pool.Exec(t.Context(), "SELECT pg_sleep(600)"); running <- err }()
		soon(t, "the query", func() bool { return pool.Stat().AcquiredConns() > 0 })
		first.stop(t)
		require.Error(t, <-running)
		b.pool.Lost(errors.New("told by a user"))
		soon(t, "the pool to give up", func() bool { return !b.pool.Ready() })
		require.Nil(t, b.sink.current())
		require.Len(t, b.sink.drops, 1)
	})
	t.Run("it stays away: the pool keeps trying and nothing restarts", func(t *testing.T) { // builds on the step before
		before := asked.Load()
		soon(t, "ten attempts", func() bool { return asked.Load() >= before+10 })
		require.False(t, b.pool.Ready())
		_, restarts := b.outages.seen()
		require.Zero(t, restarts)
	})
	second := &fixture{sys: newSystem(t), pg: first.pg, dir: dir}
	t.Run("it comes back: so does the pool", func(t *testing.T) { // builds on the step before
		require.NoError(t, second.start(t))
		soon(t, "the pool", b.pool.Ready)
		require.NoError(t, b.sink.current().Ping(t.Context()))
		require.Equal(t, 2, b.sink.uses)
	})
	t.Run("it is killed: the pool follows the new one", func(t *testing.T) { // builds on the step before
		killServer(t, dir)
		soon(t, "the pool to give up", func() bool { return b.sink.uses == 2 && !b.pool.Ready() || b.sink.uses > 2 })
		soon(t, "the pool", func() bool { pool := b.sink.current(); return pool != nil && pool.Ping(t.Context()) == nil })
	})
	t.Run("it hangs: the pool gives up, and comes back with it", func(t *testing.T) { // builds on the step before
		info := clusterInfo(t, dir)
		frozen := serversIn(info)
		for _, pid := range frozen {
			require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		}
		soon(t, "the pool to give up", func() bool { return !b.pool.Ready() })
		for _, pid := range frozen {
			require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		}
		soon(t, "the pool", b.pool.Ready)
		_, restarts := b.outages.seen()
		require.Zero(t, restarts)
	})
}

// TestPoolIsTriedWhileCallersAsk takes a database away for so long that the back-off is an
// hour, and brings it back.
func TestPoolIsTriedWhileCallersAsk(t *testing.T) {
	t.Parallel()
	served := serve(t, config(made(t)))
	var away atomic.Bool
	var asked atomic.Int32
	source := func(ctx context.Context) (*pgx.ConnConfig, error) {
		asked.Add(1)
		if away.Load() {
			return nil, errors.New("away")
		}
		return served.pg.ConnConfig(ctx)
	}
	away.Store(true)
	b := startPool(t, PoolConfig{Source: source, Backoff: backoff.Backoff{Min: time.Hour, Max: time.Hour}})
	require.False(t, b.pool.Ready())
	soon(t, "attempts while a caller asks", func() bool { b.pool.Lost(errors.New("no pool")); return asked.Load() > 3 })
	b.pool.Lost(errors.New("no pool"))
	away.Store(false)
	back := time.Now()
	soon(t, "the pool", func() bool { b.pool.Lost(errors.New("no pool")); return b.pool.Ready() })
	require.Less(t, time.Since(back), 1500*time.Millisecond)
}

func TestURL(t *testing.T) {
	t.Parallel()
	source := must(URL("postgres://me:secret@db.example:6432/builds?statement_timeout=1000"))(t)
	cfg := must(source(t.Context()))(t)
	require.Equal(t, "db.example", cfg.Host)
	pc := must(poolConfig(cfg, NewPool(PoolConfig{}).cfg))(t)
	require.Equal(t, "1000", pc.ConnConfig.RuntimeParams["statement_timeout"], "the URL's limit stands")
	require.Equal(t, "2000", pc.ConnConfig.RuntimeParams["lock_timeout"])

	_, err := URL("postgres://me:secret@db.example:port/builds")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}
