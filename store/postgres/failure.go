package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"takt/store"
)

// errSlow is the cause of contexts whose time for the database is up.
var errSlow = errors.New("the database takes too long")

// constraintError returns the error that tells a client what the violation of a constraint
// means, or err itself.
func constraintError(name string, err error) error {
	switch name {
	case "build_ids_pkey":
		return store.Wrap(store.Conflict, "Build id is already in use", err)
	case "builds_priority_check":
		return store.Wrap(store.InvalidArgument, "Priority must be between -10 and 10", err)
	case "builds_platform_check":
		return store.Wrap(store.InvalidArgument, "Valid platform required", err)
	case "worker_telemetry_worker_id_fkey": // the worker was deleted after the look-up
		return store.Wrap(store.Forbidden, "Unknown worker", err)
	case "diagnostic_reports_worker_id_fkey":
		return store.Wrap(store.NotFound, "Worker not found", err)
	case "workers_slots_check":
		return store.Wrap(store.InvalidArgument, "A worker has at least one slot", err)
	}
	return err
}

// unavailable returns the error for an outage. It asks for a retry after one to two seconds,
// by chance, so that not all clients come back at once.
func unavailable(cause error) error {
	return tryAgain("Database unavailable, try again later", cause)
}

func tryAgain(message string, cause error) error {
	return &store.Error{Code: store.Unavailable, Message: message, RetryAfter: time.Second + rand.N(time.Second), Err: cause}
}

// contention returns the error for a change that was rolled back because of others.
func contention(cause error) error {
	return tryAgain("Another request is changing the same data, try again", fmt.Errorf("%w: %w", store.ErrContention, cause))
}

// noConnection translates the error of acquiring a connection, which is always an outage
// unless the caller cancelled.
func noConnection(ctx context.Context, err error) error {
	if gone(ctx) {
		return fmt.Errorf("waiting for a connection: %w", context.Cause(ctx))
	}
	return unavailable(fmt.Errorf("getting a connection: %w", err))
}

// gone reports whether the caller's context was cancelled, not timed out.
func gone(ctx context.Context) bool { return errors.Is(ctx.Err(), context.Canceled) }

// failure translates the error of a statement. Outages, contention and a time limit become
// Unavailable, violated constraints what constraintError returns. It keeps *store.Error and
// unknown errors.
func failure(ctx context.Context, err error) error {
	var known *store.Error
	var pgErr *pgconn.PgError
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case isContention(err):
		return contention(err)
	case isOutage(err):
		return unavailable(err)
	case errors.As(err, &pgErr):
		return constraintError(pgErr.ConstraintName, err)
	case gone(ctx):
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case ctx.Err() != nil:
		return unavailable(fmt.Errorf("%w: %w", context.Cause(ctx), err))
	case isLost(err):
		return unavailable(err)
	}
	return err
}

// isLost reports whether err is the loss of a connection.
func isLost(err error) bool {
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, pgconn.ErrConnClosed)
}

// stateOf returns the SQLSTATE of an error of the database, "" for any other.
func stateOf(err error) string {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code
	}
	return ""
}

// isOutage reports whether an error of the database concerns the server and not the
// statement.
func isOutage(err error) bool {
	state := stateOf(err)
	switch state {
	case "25006", // read only: a standby after a fail-over
		"57014": // statement_timeout, or a cancel by an operator
		return true
	}
	class := state[:min(2, len(state))]
	return class == "08" || // connection failure
		class == "53" || // out of disk, memory or connections
		class == "57" || // shutting down or starting
		class == "58" // I/O error
}

// isContention reports whether the database rolled a transaction back because of others.
func isContention(err error) bool {
	switch stateOf(err) {
	case "25P03", // idle_in_transaction_session_timeout: others waited for this transaction
		"40001", // serialization failure
		"40P01", // deadlock
		"55P03": // lock_timeout
		return true
	}
	return false
}

// commitFailure translates an error of COMMIT. Only if the database refused it is the
// outcome certain; after any other error the commit may have happened. pgconn.SafeToRetry
// can't tell, because it also returns true for the "conn closed" after a lost reply.
func commitFailure(err error) error {
	state := stateOf(err)
	if errors.Is(err, pgx.ErrTxCommitRollback) || strings.HasPrefix(state, "23") || isContention(err) {
		return err
	}
	return unknown(err)
}

// statementFailure translates an error of a statement outside a transaction. If the
// connection was lost or the context ended, the statement may have been committed.
func statementFailure(ctx context.Context, err error) error {
	var known *store.Error
	var pgErr *pgconn.PgError
	switch {
	case err == nil, errors.As(err, &known), errors.As(err, &pgErr) && pgErr.Severity == "ERROR":
		return err
	case pgErr != nil, isLost(err), ctx.Err() != nil:
		return unknown(err)
	}
	return err
}

// isCertain reports whether err is an error after which certainly nothing was committed.
func isCertain(err error) bool { return err != nil && !errors.Is(err, store.ErrOutcomeUnknown) }

// unknown returns the error for a change that may have been committed.
func unknown(err error) error {
	return unavailable(fmt.Errorf("%w: %w", store.ErrOutcomeUnknown, err))
}
