// Package postgres stores the types of package store in PostgreSQL (14 or newer). Each noun
// has its file, a large one several with the same prefix. A statement is a constant above
// the method that runs it; one that several methods share is with the first of them. It
// begins with its name in a comment, which metrics, PostgreSQL's log and pg_stat_activity
// show. One test prepares all statements against the migrated schema.
//
// All nouns share one package, because their statements share tables, locks and
// [DB]. Packages by noun would have to export these to each other.
//
// # State
//
// [DB] holds the current connection pool, which the database subsystem sets and
// drops, and hints about the queue: how many builds are pending, of which classes, and
// at which position of the index each class begins. [Queue] remembers which builds can't
// be assigned, and [Keys] which version of the keys its ring holds. Everything else is
// in the database, whose clock decides about time.
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
// wrapping store.ErrContention. If the reply to a COMMIT is lost, the method fails with
// store.Unavailable wrapping store.ErrOutcomeUnknown. Errors meant for clients wrap a
// *store.Error; any other error is a defect or the end of the caller's context.
//
// # Concurrency
//
// All methods may be called from any goroutine and from any number of
// controllers. Rows are locked in one order, so that transactions don't deadlock: the
// worker's identity (worker_details), its telemetry, then workers in the order of their
// ids, then builds. Two exceptions, [Builds.Finish] when it blames another worker and
// [Throttle.Accept] when it creates jobs, may deadlock; PostgreSQL then rolls one
// transaction back, which is tried again. Whether a worker holds a build changes only
// under that worker's lock.
package postgres
