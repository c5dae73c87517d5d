package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
)

// openPool is a pgx pool with its connections and its health check.
type openPool struct {
	pool  *pgxpool.Pool
	conns sync.Map // the pool's open connections: *pgx.Conn → nothing
	probe *prober
}

// connectPool resolves the address, runs the migrations and opens the pool. When it
// returns, queries can run.
func connectPool(ctx context.Context, cfg PoolConfig) (*openPool, error) {
	hosts, err := cfg.Source(ctx)
	if err != nil {
		return nil, err
	}
	l := &openPool{probe: &prober{cfg: hosts, connect: cfg.ConnectTimeout, answer: cfg.AnswerTimeout}}
	// The probe is first, because it is the cheapest check for an outage, gives the clearest
	// error, and chooses the host.
	if _, err := l.probe.check(ctx); err != nil {
		return nil, err
	}
	conn := l.probe.conn.Config()
	conn.ConnectTimeout = cmp.Or(conn.ConnectTimeout, cfg.ConnectTimeout)
	if err := l.fill(ctx, conn, cfg); err != nil {
		l.probe.close()
		return nil, err
	}
	return l, nil
}

// fill migrates the database and opens the pool.
func (l *openPool) fill(ctx context.Context, conn *pgx.ConnConfig, cfg PoolConfig) error {
	if cfg.Migrate != nil {
		migrating := conn.Copy()
		if cfg.Direct != nil {
			var err error
			if migrating, err = cfg.Direct(ctx); err != nil {
				return err
			}
			migrating.ConnectTimeout = cmp.Or(migrating.ConnectTimeout, cfg.ConnectTimeout)
		}
		migrating.Tracer = &tracer{Metrics: cfg.Metrics, all: migrationStatement}
		if err := cfg.Migrate(ctx, migrating); err != nil {
			return fmt.Errorf("migrating the database: %w", err)
		}
	}
	pc, err := poolConfig(conn, cfg)
	if err != nil {
		return err
	}
	pc.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		l.conns.Store(conn, nil)
		return nil
	}
	pc.BeforeClose = func(conn *pgx.Conn) { l.conns.Delete(conn) }
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

const (
	// statementTimeout ends a statement that takes longer.
	statementTimeout = 30 * time.Second
	// lockTimeout ends a wait for a lock. It is short, so that a change can be tried again
	// within the time that its caller has.
	lockTimeout = 2 * time.Second
	// idleInTransactionTimeout ends a session that is idle in a transaction.
	idleInTransactionTimeout = 15 * time.Second
)

// poolConfig derives the pool's settings. Time limits in the database URL take
// precedence.
func poolConfig(conn *pgx.ConnConfig, cfg PoolConfig) (*pgxpool.Config, error) {
	pc, err := pgxpool.ParseConfig("host=/ sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("making the connection pool: %w", err)
	}
	pc.ConnConfig = conn.Copy()
	pc.ConnConfig.Tracer = &tracer{Metrics: cfg.Metrics}
	settings := map[string]string{
		"statement_timeout":                   milliseconds(statementTimeout),
		"lock_timeout":                        milliseconds(lockTimeout),
		"idle_in_transaction_session_timeout": milliseconds(idleInTransactionTimeout),
		"application_name":                    "takt",
	}
	if cfg.Direct != nil { // a pooler refuses them; they are set for the login instead
		settings = nil
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	for name, value := range settings {
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

// check checks that the database answers. If that needed a new connection, it closes the pool's
// connections, because they are probably dead too.
func (l *openPool) check(ctx context.Context) error {
	fresh, err := l.probe.check(ctx)
	if err == nil && fresh {
		l.pool.Reset()
	}
	return err
}

// close closes the pool and returns when all connections were given back. Running queries may
// take until drain; they are then cancelled in the database. One second later their
// connections are closed, so that calls on them fail. After another second close returns in
// any case, because pgx waits up to 15 s for a database that hangs when it closes the
// connections of interrupted calls.
func (l *openPool) close(ctx context.Context, drain time.Duration, log zerolog.Logger) {
	l.probe.close()
	defer time.AfterFunc(drain, func() { l.cancel(context.WithoutCancel(ctx)) }).Stop()
	defer time.AfterFunc(drain+time.Second, func() {
		log.Error().Msg("database connection held for too long; closing it")
		l.cut()
	}).Stop()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(drain + 2*time.Second):
	}
}

// cut closes all connections, so that calls on them fail immediately.
func (l *openPool) cut() {
	l.conns.Range(func(conn, _ any) bool {
		hangUp(conn.(*pgx.Conn)) // the map holds nothing else
		return true
	})
}

// cancel asks the database to cancel the queries on the connections.
func (l *openPool) cancel(ctx context.Context) {
	ctx, stop := context.WithTimeoutCause(ctx, time.Second, errors.New("the database did not take the cancellation in time"))
	defer stop()
	l.conns.Range(func(conn, _ any) bool {
		_ = conn.(*pgx.Conn).PgConn().CancelRequest(ctx) // cut follows
		return true
	})
}

// prober checks whether the database answers, on a connection outside the pool, because a busy
// pool must not look like an outage. It is safe for concurrent use.
type prober struct {
	cfg     *pgx.ConnConfig
	connect time.Duration // the time limit of a connection attempt
	answer  time.Duration // the time limit of a ping

	mu   sync.Mutex // held during a check
	conn *pgx.Conn  // nil before the first check and after a failed one
	at   hostPort   // of the first connection; the pool's connections go there too
}

// errMoved means that the prober reached another host than that of the pool's connections.
var errMoved = errors.New("another host of the database has become the primary")

// check returns nil if the database answers, on the open connection or a new one. It tries a
// new one because a single dead connection (closed by an operator or a restart of the server)
// is no outage; fresh is then true. Errors: errMoved, or that of the connection attempt.
func (p *prober) check(ctx context.Context) (fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		if p.ping(ctx) == nil {
			return false, nil
		}
		hangUp(p.conn)
	}
	if p.conn, err = p.dial(ctx); err != nil {
		return true, err
	}
	at := hostPort{p.conn.Config().Host, p.conn.Config().Port}
	if p.at != (hostPort{}) && p.at != at {
		hangUp(p.conn)
		p.conn = nil
		return true, errMoved
	}
	p.at = at
	return true, nil
}

func (p *prober) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.answer, errors.New("the database did not answer in time"))
	defer cancel()
	return p.conn.Ping(ctx)
}

func (p *prober) dial(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.connect, errors.New("the database did not let takt in in time"))
	defer cancel()
	return dial(ctx, p.cfg)
}

// close closes the prober's connection, after a running check. No check may follow.
func (p *prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		hangUp(p.conn)
	}
}

// hangUp closes a connection without PostgreSQL's terminate message, which could block.
func hangUp(conn *pgx.Conn) {
	_ = conn.PgConn().Conn().Close() // nothing depends on it
}
