package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"takt/store"
)

// opTimeout bounds a method, including the wait for a connection and further tries. A few
// methods have limits of their own: assignTimeout, planTimeout and invariantLimit.
const opTimeout = 10 * time.Second

// DB gives this package connections to the database, from the pool that is current at each
// call. Safe for concurrent use.
type DB struct {
	pool    atomic.Pointer[pgxpool.Pool]
	cause   atomic.Pointer[error] // why there is no pool; nil before the first Drop
	lost    func(error)           // see OnLost
	pending pendingHint
	head    watermarks
	classes classes
}

// New returns a DB without a pool: methods fail with Unavailable until Use.
func New() *DB { return &DB{} }

// OnLost sets a function that is called with the cause of each lost connection, and by each
// call that finds no pool, so that the owner of the pool can check it at once. f must not
// block. OnLost must be called before DB is used.
func (db *DB) OnLost(f func(error)) { db.lost = f }

// Use makes pool the current one. The caller still owns it and closes it after Drop.
func (db *DB) Use(pool *pgxpool.Pool) {
	db.pending.forget()
	db.head.reset()
	db.pool.Store(pool)
}

// requeued updates the hints about the queue for builds that are pending again.
func (db *DB) requeued(refs []store.BuildRef) {
	for _, r := range refs {
		db.pending.forget()
		db.head.lower(r.Position)
	}
}

// Drop removes the current pool: later calls fail with Unavailable and cause. Running calls
// keep their connections.
func (db *DB) Drop(cause error) {
	db.cause.Store(&cause)
	db.pool.Store(nil)
}

// Ping checks that the database answers within 10 s.
func (db *DB) Ping(ctx context.Context) error {
	return db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		return c.Ping(ctx)
	})
}

// sqlSession sets the planner options of a connection. The statements of this package are
// index look-ups. With the defaults, a plan that was made while a table was empty would scan
// that table until the next ANALYZE, and each execution would be planned again.
const sqlSession = `/* session */ SELECT set_config('enable_seqscan', 'off', false),
	set_config('enable_bitmapscan', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false),
	set_config('jit', 'off', false)`

// sessionKey is set in the custom data of a connection that run has prepared.
const sessionKey = "takt/store/postgres"

// times decodes times in UTC, and NULL and infinite times as the zero time.
type times struct{ pgtype.TimestamptzCodec }

// PlanScan implements pgtype.Codec.
func (c *times) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*time.Time); !ok {
		return c.TimestamptzCodec.PlanScan(m, oid, format, target)
	}
	return timePlan{c.TimestamptzCodec.PlanScan(m, oid, format, (*readTime)(nil))}
}

type timePlan struct{ pgtype.ScanPlan }

func (p timePlan) Scan(src []byte, to any) error {
	return p.ScanPlan.Scan(src, (*readTime)(to.(*time.Time))) // as planned
}

type readTime time.Time

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *readTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	*t = readTime(v.Time)
	return nil
}

// run calls f with a connection of the current pool, for at most timeout, and
// translates its error.
func (db *DB) run(ctx context.Context, timeout time.Duration, f func(context.Context, *pgx.Conn) error) error {
	pool := db.pool.Load()
	if pool == nil {
		cause := db.gap()
		db.connectionLost(cause)
		return unavailable(cause)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errSlow)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		db.connectionLost(err)
		return noConnection(ctx, err)
	}
	defer conn.Release()
	c := conn.Conn()
	if custom := c.PgConn().CustomData(); custom[sessionKey] == nil {
		// In another mode the connection goes through a pooler, which shares its sessions
		// with other clients and plans each execution anyway.
		if c.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
			if _, err := c.Exec(ctx, sqlSession); err != nil {
				return failure(ctx, fmt.Errorf("preparing the session: %w", err))
			}
		}
		codec := &times{pgtype.TimestamptzCodec{ScanLocation: time.UTC}}
		c.TypeMap().RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: codec})
		custom[sessionKey] = true
	}
	if err = f(ctx, c); err != nil && c.IsClosed() {
		db.connectionLost(err)
	}
	return failure(ctx, err)
}

// connectionLost calls the function of OnLost, unless err only means that the caller
// cancelled.
func (db *DB) connectionLost(err error) {
	if db.lost != nil && !errors.Is(err, context.Canceled) {
		db.lost(err)
	}
}

// gap returns why there is no pool.
func (db *DB) gap() error {
	if cause := db.cause.Load(); cause != nil && *cause != nil {
		return *cause
	}
	return errors.New("no connection pool yet")
}

// rollback rolls tx back if it is still open, even if ctx has ended, so that the
// connection can be used again.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // the connection is thrown away if this fails
}

// commit commits tx. Once COMMIT is sent it ignores the end of ctx, because giving up would
// leave the outcome unknown.
func commit(ctx context.Context, tx pgx.Tx) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), opTimeout, errSlow)
	defer cancel()
	if err := tx.Commit(ctx); err != nil {
		return commitFailure(err)
	}
	return nil
}
