package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/backoff"
)

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
