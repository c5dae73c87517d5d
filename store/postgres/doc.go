// Package postgres keeps the values of package store in PostgreSQL (14 or
// newer). Each noun has its file, a large one several with the same prefix. A
// statement is a constant beside the method that runs it; one that several methods
// share stands with the first of them. It begins with its name in a comment, which
// metrics, PostgreSQL's log and pg_stat_activity show. One test prepares all statements
// against the migrated schema.
//
// All nouns share one package, because their statements share tables, locks and
// [DB]. Packages by noun would have to export these to each other.
//
// # State
//
// [DB] holds the current connection pool, which the database subsystem sets and
// drops, and two hints: how many builds are pending, and where they begin in the
// index. [Queue] and [Throttle] remember which builds can't be assigned and which
// queues had a job. Everything else is in the database, and time is the database's.
//
// The owner of the pool sets statement_timeout to 30 s, lock_timeout to 2 s and
// idle_in_transaction_session_timeout to 15 s. This package sets its planner options
// itself when it first uses a connection.
//
// # Failure
//
// While there is no pool, and whenever a connection is lost, methods fail at
// once with store.Unavailable. A change that the database rolls back because of other
// transactions is tried again while time is left, and then fails with store.Unavailable
// wrapping store.ErrContention. A COMMIT whose answer was lost fails with
// store.Unavailable wrapping store.ErrOutcomeUnknown. Errors that a caller may see
// are *store.Error; every other error is a defect.
//
// # Concurrency
//
// All methods may be called from any goroutine and from any number of
// controllers. Deadlocks are excluded by one order of row locks: the worker's
// identity (worker_details), its telemetry, then workers in the order of their ids,
// then builds. A build that a worker holds changes only under that worker's lock.
package postgres
