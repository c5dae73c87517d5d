package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"takt/store"
	"takt/store/backoff"
	"takt/store/batching"
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
	known   knownFleet
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
	db.known.forget()
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

// operation is what a method does in the database: statements with run, or a transaction
// with tx. Its errors begin with doing.
type operation struct {
	db      *DB
	doing   string
	timeout time.Duration
	// writes is true if the operation changes something. If its reply is lost, the outcome is
	// then unknown. If contention rolls it back, it runs again.
	writes bool
	// called, if set, is true once a function from once was called; o then does not run again.
	called *bool
}

// read begins an operation that changes nothing.
func (db *DB) read(doing string) operation {
	return operation{db: db, doing: doing, timeout: opTimeout}
}

// write begins an operation that may change something.
func (db *DB) write(doing string) operation {
	return operation{db: db, doing: doing, timeout: opTimeout, writes: true}
}

// lockTimeout is the pool's lock_timeout. With less time left, a further try could reach its
// deadline while it waits for a lock, and pgx would then close the connection.
const lockTimeout = 2 * time.Second

// do calls f with a connection. If o writes, it calls f again, after growing pauses, while
// contention rolls it back and more time than lockTimeout is left. So f must set all its
// results at each call.
func (o operation) do(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, errSlow)
	defer cancel()
	deadline, _ := ctx.Deadline()
	pauses := backoff.Backoff{Min: 10 * time.Millisecond, Max: 200 * time.Millisecond}
	for n := 0; ; n++ {
		err := o.db.run(ctx, o.timeout, f)
		if !errors.Is(err, store.ErrContention) || !o.writes || o.called != nil && *o.called {
			return o.failure(err)
		}
		pause := pauses.Wait(n)
		if time.Until(deadline) < pause+lockTimeout || backoff.Pause(ctx, pause) != nil {
			return o.failure(err)
		}
	}
}

// once returns a function that calls f. After that call o's transaction does not run again.
func (o *operation) once(f func() error) func() error {
	called := new(bool)
	o.called = called
	return func() error {
		*called = true
		return f()
	}
}

// committing returns a function that commits files within o's transaction. After that call
// the transaction does not run again, because another upload could have taken the files'
// names meanwhile.
func (o *operation) committing(ctx context.Context, files []store.Staged) func() error {
	if len(files) == 0 {
		return func() error { return nil }
	}
	return o.once(func() error { return commitFiles(ctx, files) })
}

// run calls f with a connection, outside a transaction. If o writes, f may be called more
// than once, so each of its statements must be harmless if repeated.
func (o operation) run(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return o.do(ctx, func(ctx context.Context, c *pgx.Conn) error {
		err := f(ctx, c)
		if o.writes {
			err = statementFailure(ctx, err)
		}
		return err
	})
}

// tx calls f in a transaction, which it commits, or rolls back if f returns an error. f may
// be called more than once; see once.
func (o operation) tx(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return o.do(ctx, func(ctx context.Context, c *pgx.Conn) error {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		defer rollback(ctx, tx)
		if err := f(ctx, tx); errors.Is(err, syscall.EPIPE) {
			// The server ended the session before it received this statement, most likely
			// because of idle_in_transaction_session_timeout, whose error pgx does not read.
			return contention(err)
		} else if err != nil {
			return err
		}
		return commit(ctx, tx)
	})
}

// trips runs a transaction in two round trips: the statements that lock queues, and, after
// decide, those that write queues. If these are none, or there was an error, it is rolled back.
// All three may be called more than once, decide only until it calls a function from once. Once
// write was called, the end of ctx is ignored.
func (o operation) trips(
	ctx context.Context, lock func(*pgx.Batch), decide func(context.Context, *pgx.Conn) error, write func(*pgx.Batch),
) error {
	return o.do(ctx, func(ctx context.Context, c *pgx.Conn) (err error) {
		defer func() {
			if err != nil {
				endTransaction(ctx, c)
			}
		}()
		locks, writes := &pgx.Batch{}, &pgx.Batch{}
		locks.Queue(sqlBegin)
		lock(locks)
		if err = c.SendBatch(ctx, locks).Close(); err != nil {
			return err
		}
		if err = decide(ctx, c); err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		write(writes)
		end := sqlCommit
		if writes.Len() == 0 {
			end = sqlRollback // which needs no write to the disk
		}
		writes.Queue(end)
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), opTimeout, errSlow)
		defer cancel()
		err = c.SendBatch(ctx, writes).Close()
		switch {
		case errors.Is(err, syscall.EPIPE): // as in tx
			return contention(err)
		case err != nil && end == sqlCommit && !isContention(err):
			return statementFailure(ctx, err)
		}
		return err
	})
}

// requeue calls f in a transaction, as tx does. f returns the builds that it made pending
// again; the commit notifies every controller of them.
func (o operation) requeue(ctx context.Context, f func(context.Context, pgx.Tx) ([]store.BuildRef, error)) error {
	var refs []store.BuildRef
	err := o.tx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if refs, err = f(ctx, tx); err != nil || len(refs) == 0 {
			return err
		}
		class := store.Class{ID: refs[0].ClassID, Platform: refs[0].Platform}
		payload := "job:available " + class.Event()
		if slices.ContainsFunc(refs, func(r store.BuildRef) bool { return r.ClassID != class.ID }) {
			payload = "job:available"
		}
		_, err = tx.Exec(ctx, sqlNotify, payload)
		return err
	})
	if err == nil {
		o.db.requeued(refs)
	}
	return err
}

const sqlNotify = `/* notify */ SELECT pg_notify('takt', $1)`

func (o operation) failure(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", o.doing, err)
	}
	return nil
}

// shared translates the error of a batch that o shares with others, or of the wait for it.
func (o operation) shared(ctx context.Context, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(err, batching.ErrUnknown):
		err = unknown(err)
	case err != nil && errors.Is(err, cause) && !gone(ctx):
		err = unavailable(err)
	}
	return o.failure(err)
}

// exec runs a statement and returns how many rows it affected.
func (o operation) exec(ctx context.Context, sql string, args ...any) (rows int64, err error) {
	err = o.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		tag, err := c.Exec(ctx, sql, args...)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}

// change runs a statement that must affect a row. If it affects none, change returns none().
func (o operation) change(ctx context.Context, none func() error, sql string, args ...any) error {
	return o.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		tag, err := c.Exec(ctx, sql, args...)
		if err == nil && tag.RowsAffected() == 0 {
			return none()
		}
		return err
	})
}

// each calls f for each row of a statement, after scanning its values into to.
func (o operation) each(ctx context.Context, to []any, f func() error, sql string, args ...any) error {
	return o.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, sql, args...) // its error is that of the rows
		_, err := pgx.ForEachRow(rows, to, f)
		return err
	})
}

// scan reads the only row of a statement into to. If there is no row, it returns none(), or
// with a nil none it returns nil and leaves to unchanged.
func (o operation) scan(ctx context.Context, none func() error, to []any, sql string, args ...any) error {
	return o.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return orNone(c.QueryRow(ctx, sql, args...).Scan(to...), none)
	})
}

// rowOf reads the only row of a statement with the function by. If there is no row, it
// returns none(), or with a nil none the zero value.
func rowOf[T any](ctx context.Context, o operation, none func() error, by pgx.RowToFunc[T], sql string, args ...any) (row T, err error) {
	err = o.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, sql, args...) // its error is that of the rows
		row, err = pgx.CollectOneRow(rows, by)
		return orNone(err, none)
	})
	return row, err
}

// valueOf returns the only value of a statement, the zero value if there is no row.
func valueOf[T any](ctx context.Context, o operation, sql string, args ...any) (T, error) {
	return rowOf(ctx, o, nil, pgx.RowTo[T], sql, args...)
}

// rowsOf returns all rows of a statement.
func rowsOf[T any](ctx context.Context, o operation, by pgx.RowToFunc[T], sql string, args ...any) (all []T, err error) {
	err = o.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		all, err = collect(ctx, c, by, sql, args...)
		return err
	})
	return all, err
}

// orNone replaces pgx.ErrNoRows by none(), or by nil if none is nil.
func orNone(err error, none func() error) error {
	switch {
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	case none == nil:
		return nil
	}
	return none()
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// collect returns all rows of a statement.
func collect[T any](ctx context.Context, q querier, by pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, _ := q.Query(ctx, sql, args...) // its error is that of the rows
	return pgx.CollectRows(rows, by)
}
