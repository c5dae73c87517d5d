package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// opTimeout bounds every method but Assign, waits for a connection included.
const opTimeout = 10 * time.Second

// DB is the handle through which everything here reaches the database. It
// resolves the current pool on every call and is safe for concurrent use. The
// zero value has no pool; use New.
type DB struct {
	pool    atomic.Pointer[pgxpool.Pool]
	cause   atomic.Pointer[error] // why there is no pool
	lost    func(error)           // see OnLost
	pending pendingHint
	head    lowMarks
}

// New returns a DB without a pool: methods fail with Unavailable until Use.
func New() *DB { return &DB{} }

// OnLost has f told of each connection that is lost, and of each call that finds no
// pool, so that whoever keeps the pool looks after it at once. f must not block. It is set before the first Use.
func (db *DB) OnLost(f func(error)) { db.lost = f }

// Use makes pool the current one. DB never closes a pool.
func (db *DB) Use(pool *pgxpool.Pool) {
	db.pending.forget()
	db.head.reset()
	db.pool.Store(pool)
}

// requeued tells the hints of the queue that builds came back to it, at positions.
func (db *DB) requeued(positions []int64) {
	if len(positions) == 0 {
		return
	}
	db.pending.forget()
	db.head.lower(slices.Min(positions))
}

// Drop takes the pool away because of cause. Calls under way keep theirs.
func (db *DB) Drop(cause error) {
	db.cause.Store(&cause)
	db.pool.Store(nil)
}

// Ping asks the database whether it answers.
func (db *DB) Ping(ctx context.Context) error {
	return db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		return c.Ping(ctx)
	})
}

// sqlSession prepares a connection for this package, whose statements are all a
// handful of index look-ups. Without it a plan made while a table was empty
// scans that table until the next ANALYZE, and each execution is planned anew.
const sqlSession = `SELECT set_config('enable_seqscan', 'off', false),
	set_config('enable_bitmapscan', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false),
	set_config('jit', 'off', false)`

// sessionKey marks a prepared connection in its custom data.
const sessionKey = "takt/store/postgres"

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
		if _, err := c.Exec(ctx, sqlSession); err != nil {
			return failure(ctx, fmt.Errorf("preparing the session: %w", err))
		}
		custom[sessionKey] = true
	}
	if err = f(ctx, c); err != nil && c.IsClosed() {
		db.connectionLost(err)
	}
	return failure(ctx, err)
}

// connectionLost passes on that a connection was lost, unless its user just went away.
func (db *DB) connectionLost(err error) {
	if db.lost != nil && !errors.Is(err, context.Canceled) {
		db.lost(err)
	}
}

// gap says why there is no pool.
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

// commit commits tx. It does not end with ctx: a commit that was begun is seen
// through, because giving up on it makes its outcome unknown.
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
