package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"takt/actors/otp"
	"takt/migrations"
	"takt/store/backoff"
	"takt/store/metrics"
	"takt/store/seal"
)

// Source returns the database's current address. The pool calls it before each attempt to
// connect. (*Postgres).ConnConfig and URL are sources.
type Source func(ctx context.Context) (*pgx.ConnConfig, error)

// PoolUser is a user of the pool. Use is called with a pool whose database answers and is migrated,
// Drop before that pool is closed, with the reason. The calls alternate and never overlap. They
// must not block.
type PoolUser interface {
	Use(pool *pgxpool.Pool)
	Drop(cause error)
}

// PoolConfig has the pool's settings. Zero values mean the defaults.
type PoolConfig struct {
	// Source is required.
	Source Source
	// Direct is the address of PostgreSQL itself if Source is that of a pooler in transaction
	// mode, such as PgBouncer. Sessions then keep neither settings nor prepared statements. nil
	// means that there is no pooler.
	Direct Source
	// Migrate migrates the schema, on a connection of its own, before the sinks get the pool.
	// It is called again after each outage, so it must be idempotent. May be nil.
	Migrate func(ctx context.Context, cfg *pgx.ConnConfig) error
	// Sinks get the pool in this order, and lose it in reverse order.
	Sinks []PoolUser
	// Size is the maximum number of connections. Defaults to 10.
	Size int
	// ConnectTimeout bounds one attempt to connect. Defaults to 5 seconds.
	ConnectTimeout time.Duration
	// CheckEvery is the time between health checks. Defaults to 1 second.
	CheckEvery time.Duration
	// AnswerTimeout is how long a health check waits. Defaults to 2 seconds.
	AnswerTimeout time.Duration
	// HorizonEvery is the time between checks for old snapshots. Defaults to 10 seconds.
	HorizonEvery time.Duration
	// HorizonLimit is how long vacuum may be held back before it is reported. Defaults to
	// 60 seconds.
	HorizonLimit time.Duration
	// StartWait is how long the start waits for the first connection. After that, takt starts
	// without a database. Defaults to 10 seconds.
	StartWait time.Duration
	// Drain is how long running queries may continue when the pool is closed.
	// Defaults to 3 seconds.
	Drain time.Duration
	// Backoff is the wait between attempts. Defaults to 1 to 30 seconds.
	Backoff backoff.Backoff
	// Metrics observe the pool's statements. Defaults to unregistered metrics.
	Metrics *metrics.Metrics
}

func (c *PoolConfig) defaults() {
	c.Size = cmp.Or(c.Size, 10)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.CheckEvery = cmp.Or(c.CheckEvery, time.Second)
	c.AnswerTimeout = cmp.Or(c.AnswerTimeout, 2*time.Second)
	c.HorizonEvery = cmp.Or(c.HorizonEvery, 10*time.Second)
	c.HorizonLimit = cmp.Or(c.HorizonLimit, time.Minute)
	c.StartWait = cmp.Or(c.StartWait, 10*time.Second)
	c.Drain = cmp.Or(c.Drain, 3*time.Second)
	c.Backoff.Min = cmp.Or(c.Backoff.Min, firstRetry)
	if c.Metrics == nil {
		c.Metrics = metrics.New()
	}
}

// wantedRetry is the longest pause between two attempts while callers need the database.
const wantedRetry = 250 * time.Millisecond

// firstRetry makes the first pause of an outage 1 to 2 seconds.
const firstRetry = 2 * time.Second

// Pool is the handle of the connection pool. It outlives incarnations and is
// safe for concurrent use.
type Pool struct {
	cfg  PoolConfig
	proc atomic.Pointer[otp.Proc]
	up   atomic.Pointer[readiness]
	held atomic.Pointer[HeldBack]
	// wanted is when a caller last found no pool, in Unix nanoseconds.
	wanted atomic.Int64
}

// readiness is a period in which the database has answered without interruption.
type readiness struct {
	open  *openPool
	since time.Time
}

// NewPool returns the handle of the pool that the child of Spec will have.
func NewPool(cfg PoolConfig) *Pool {
	cfg.defaults()
	return &Pool{cfg: cfg}
}

// Spec returns the specification of the pool's actor.
func (p *Pool) Spec() otp.ChildSpec {
	return otp.ChildSpec{
		ID:       "pool",
		Server:   func() otp.Server { return &poolServer{handle: p, cfg: p.cfg} },
		Shutdown: 10 * time.Second,
	}
}

// Ready reports whether the database answers and is migrated.
func (p *Pool) Ready() bool { return p.up.Load() != nil }

// ReadySince returns since when the database has answered without
// interruption, and false if it does not.
func (p *Pool) ReadySince() (time.Time, bool) {
	up := p.up.Load()
	if up == nil {
		return time.Time{}, false
	}
	return up.since, true
}

// Stat returns the pool's statistics, nil while there is no pool.
func (p *Pool) Stat() *pgxpool.Stat {
	up := p.up.Load()
	if up == nil {
		return nil
	}
	return up.open.pool.Stat()
}

// Lost reports that a caller lost its connection or found no pool. The actor then checks the
// database, and drops the pool only if that check fails. While there is no pool, it tries to
// connect every wantedRetry. Lost never blocks and may be called often.
func (p *Pool) Lost(err error) {
	if !p.Ready() {
		now := time.Now().UnixNano()
		last := p.wanted.Load()
		if now-last < int64(wantedRetry/2) || !p.wanted.CompareAndSwap(last, now) {
			return // reported already
		}
	}
	if proc := p.proc.Load(); proc != nil {
		otp.Cast(proc, lost{err})
	}
}

// URL returns the source for an external database, or an error if the URL is wrong. If it names
// several hosts, takt connects to the one that accepts writes.
func URL(url string) (Source, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("reading the database URL: %w", err) // pgx removes the password from the error
	}
	if cfg.ValidateConnect == nil && len(hosts(cfg)) > 1 {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return func(context.Context) (*pgx.ConnConfig, error) { return cfg.Copy(), nil }, nil
}

// The messages of the pool.
type (
	lost struct{ err error } // cast: a caller lost its connection
	tick struct{}            // info: time for a health check
)

// attempt is a call of connectPool that runs or has ended. Its result is received once: by Init,
// arrived or Terminate.
type attempt chan outcome

type outcome struct {
	open *openPool
	err  error
}

// poolServer is the pool's actor. It always has an open pool, runs an attempt or waits for the
// next one.
type poolServer struct {
	otp.Base
	handle   *Pool
	cfg      PoolConfig
	open     *openPool
	attempts otp.Job[attempt]
	attempt  attempt            // whose result was not received yet; nil if there is none
	failures int                // attempts since the last success
	checks   otp.Job[*openPool] // of the open pool's health; the result is that pool
	waits    waitMeter
	looks    otp.Job[horizon] // for old snapshots
	horizon  horizonWatch
}

// Init waits up to StartWait for a connection, so that later children find a database. After
// that the actor starts suspended. Init fails if an earlier build of takt created the database,
// or if the configured keys can't open it, because waiting fixes neither.
func (s *poolServer) Init(c *otp.Ctx) error {
	s.handle.proc.Store(c.Self())
	s.inherit(c)
	s.attempts = otp.Job[attempt]{Begin: s.connect, Done: s.arrived}
	s.checks = otp.Job[*openPool]{Begin: s.check, Done: s.answered}
	s.looks = otp.Job[horizon]{Begin: s.look, Done: s.looked}
	c.SendEvery(s.cfg.CheckEvery, tick{})
	s.handle.held.Store(nil)
	s.horizon.limit = s.cfg.HorizonLimit
	s.looks.Every(c, s.cfg.HorizonEvery)
	s.attempts.Start(c)
	timer := time.NewTimer(s.cfg.StartWait)
	defer timer.Stop()
	select {
	case out := <-s.attempt:
		if errors.Is(out.err, migrations.ErrEarlierBuild) || seal.Broken(out.err) {
			return out.err
		}
		s.conclude(c, out)
	case <-timer.C:
		c.Suspend("the database takes long to connect or to migrate")
	case <-c.UntilStop().Done():
	}
	return nil
}

// HandleCast handles reports from callers.
func (s *poolServer) HandleCast(c *otp.Ctx, msg any) {
	switch m := msg.(type) {
	case lost:
		if s.open == nil {
			s.hurry(c)
			return
		}
		log := c.Logger()
		log.Debug().Err(m.err).Msg("a caller lost its database connection")
		s.checks.Tick(c)
	default:
		s.Base.HandleCast(c, msg)
	}
}

// HandleInfo handles timers and results.
func (s *poolServer) HandleInfo(c *otp.Ctx, msg any) {
	switch msg.(type) {
	case tick:
		s.checks.Tick(c)
		s.reportWaits(c)
	default:
		s.Base.HandleInfo(c, msg)
	}
}

// Terminate drops the pool and begins to close it. The actor ends when it is closed.
func (s *poolServer) Terminate(c *otp.Ctx, reason error) {
	s.handle.proc.CompareAndSwap(c.Self(), nil)
	if s.open != nil {
		s.retire(c, s.takeBack(reason), s.cfg.Drain)
	}
	if s.attempt == nil {
		return
	}
	// The attempt's context has ended. A migration that ignores that is abandoned.
	select {
	case out := <-s.attempt:
		if out.open != nil {
			s.retire(c, out.open, s.cfg.Drain)
		}
	case <-c.Context().Done():
	}
}
