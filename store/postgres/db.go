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

// opTimeout bounds every method but Assign, including the wait for a connection.
const opTimeout = 10 * time.Second

// DB is the handle through which this package reaches the database. It resolves the
// current pool on every call and is safe for concurrent use. The zero value has no
// pool; use New.
type DB struct {
	pool    atomic.Pointer[pgxpool.Pool]
	cause   atomic.Pointer[error] // why there is no pool
	lost    func(error)           // see OnLost
	pending pendingHint
	head    lowMarks
	classes classes
}

// New returns a DB without a pool: methods fail with Unavailable until Use.
func New() *DB { return &DB{} }

// OnLost sets f, which is called with the cause for each lost connection and for each
// call that finds no pool, so that the owner of the pool checks it at once. f must not
// block. OnLost must be called before the first Use.
func (db *DB) OnLost(f func(error)) { db.lost = f }

// Use makes pool the current one. DB never closes a pool.
func (db *DB) Use(pool *pgxpool.Pool) {
	db.pending.forget()
	db.head.reset()
	db.pool.Store(pool)
}

// requeued updates the hints of the queue because builds are pending again.
func (db *DB) requeued(refs []store.BuildRef) {
	for _, r := range refs {
		db.pending.forget()
		db.head.lower(r.Position)
	}
}

// Drop removes the pool because of cause. Calls that are running keep theirs.
func (db *DB) Drop(cause error) {
	db.cause.Store(&cause)
	db.pool.Store(nil)
}

// Ping checks that the database answers.
func (db *DB) Ping(ctx context.Context) error {
	return db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		return c.Ping(ctx)
	})
}

// sqlSession prepares a connection for this package, whose statements are all a few
// index look-ups. Without it, a plan that was made while a table was empty scans that
// table until the next ANALYZE, and each execution is planned again.
const sqlSession = `/* session */ SELECT set_config('enable_seqscan', 'off', false),
	set_config('enable_bitmapscan', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false),
	set_config('jit', 'off', false)`

// sessionKey marks a prepared connection in its custom data.
const sessionKey = "takt/store/postgres"

// times reads times in UTC, and NULL and infinite ones as the zero time.
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
	return p.ScanPlan.Scan(src, (*readTime)(to.(*time.Time))) //nolint:forcetypeassert // as planned
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
		// A pooler's sessions are not takt's alone, and they plan each execution anyway.
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

// connectionLost reports a lost connection, unless the caller cancelled.
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

// rollback ends tx if it is still open, also when ctx has ended, so that the
// connection can be used again.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = tx.Rollback(ctx) // the connection is thrown away if this fails
}

// commit commits tx. It ignores the end of ctx once COMMIT was sent, because giving up
// would make the outcome unknown.
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
