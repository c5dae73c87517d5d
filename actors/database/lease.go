package database

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lease is a pgx pool together with what is needed to watch it and to end it
// within a bound.
type lease struct {
	pool  *pgxpool.Pool
	conns connTrack
	probe *prober
}

// openLease connects: address, migrations, pool. It returns when a query
// would run.
func openLease(ctx context.Context, cfg PoolConfig) (*lease, error) {
	conn, err := cfg.Source(ctx)
	if err != nil {
		return nil, err
	}
	if conn.ConnectTimeout <= 0 {
		conn.ConnectTimeout = cfg.ConnectTimeout
	}
	l := &lease{probe: &prober{cfg: conn, connect: cfg.ConnectTimeout, answer: cfg.AnswerTimeout}}
	// The probe goes first: when the database is away, this is the cheapest
	// way to know, and the error is the plainest.
	if _, err := l.probe.check(ctx); err != nil {
		return nil, err
	}
	if err := l.fill(ctx, conn, cfg); err != nil {
		l.probe.close()
		return nil, err
	}
	return l, nil
}

func (l *lease) fill(ctx context.Context, conn *pgx.ConnConfig, cfg PoolConfig) error {
	if cfg.Migrate != nil {
		if err := cfg.Migrate(ctx, conn.Copy()); err != nil {
			return fmt.Errorf("migrating the database: %w", err)
		}
	}
	pc, err := poolConfig(conn, cfg)
	if err != nil {
		return err
	}
	pc.AfterConnect = l.conns.add
	pc.BeforeClose = l.conns.remove
	if l.pool, err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return fmt.Errorf("making the connection pool: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.ConnectTimeout, errors.New("the pool did not connect in time"))
	defer cancel()
	if err := l.pool.Ping(ctx); err != nil {
		l.pool.Close()
		return fmt.Errorf("filling the connection pool: %w", err)
	}
	return nil
}

// poolConfig derives the pool's settings. Time limits that the database URL
// gives stand.
func poolConfig(conn *pgx.ConnConfig, cfg PoolConfig) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig("host=/ sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("making the connection pool: %w", err)
	}
	pc.ConnConfig = conn.Copy()
	if pc.ConnConfig.RuntimeParams == nil {
		pc.ConnConfig.RuntimeParams = map[string]string{}
	}
	for name, value := range map[string]string{
		"statement_timeout":                   milliseconds(cfg.StatementTimeout),
		"lock_timeout":                        milliseconds(cfg.LockTimeout),
		"idle_in_transaction_session_timeout": milliseconds(cfg.IdleInTransactionTimeout),
		"application_name":                    "takt",
	} {
		if _, given := pc.ConnConfig.RuntimeParams[name]; !given {
			pc.ConnConfig.RuntimeParams[name] = value
		}
	}
	pc.MaxConns = int32(cfg.Size)
	pc.MinConns = min(2, pc.MaxConns)
	pc.MaxConnLifetime = time.Hour
	pc.MaxConnLifetimeJitter = 5 * time.Minute
	pc.MaxConnIdleTime = 10 * time.Minute
	pc.HealthCheckPeriod = 30 * time.Second
	return pc, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// check asks the database whether it answers. If that took a new connection,
// the pool drops its own too: they are as old as the one that was dead.
func (l *lease) check(ctx context.Context) error {
	fresh, err := l.probe.check(ctx)
	if err == nil && fresh {
		l.pool.Reset()
	}
	return err
}

// close begins to close the pool: nobody gets a connection any more. The
// result is closed when all connections are back. end has to follow.
func (l *lease) close(run spawn) (closed <-chan struct{}) {
	l.probe.close()
	done := make(chan struct{})
	run(func() {
		defer close(done)
		l.pool.Close()
	})
	return done
}

// end waits until the pool is closed. What runs has drain to finish, is then
// cancelled in the database, and a second later loses its connections. end
// returns false when somebody keeps a connection without using it.
func (l *lease) end(ctx context.Context, closed <-chan struct{}, drain time.Duration) bool {
	for _, step := range []struct {
		wait time.Duration
		then func()
	}{
		{drain, func() { l.conns.cancel(ctx, time.Second) }},
		{time.Second, l.conns.cut},
		{time.Second, func() {}},
	} {
		timer := time.NewTimer(step.wait)
		select {
		case <-closed:
			timer.Stop()
			return true
		case <-timer.C:
			step.then()
		}
	}
	return false
}
