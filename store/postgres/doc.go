// Package postgres keeps the values of package store in PostgreSQL (14 or
// newer). Each noun has its file, a large one several with the same prefix. A
// statement is a constant that stands beside the method that runs it; one that
// several methods share stands with the first of them. One test prepares them all
// against the migrated schema.
//
// All nouns share one package, because their statements share tables, locks and
// [DB]: packages by noun would have to export to each other what concerns nobody
// else.
//
// # State
//
// [DB] holds the current connection pool, which the database subsystem hands over
// and takes away, and hints: how many builds are pending, and where the queue
// begins. [Queue] and [Throttle] remember which builds can't be assigned and which
// queues had a job. All else is in the database, and time is the database's.
//
// A pool for it sets statement_timeout to 30 s, lock_timeout to 5 s and
// idle_in_transaction_session_timeout to 15 s; what this package needs of the
// planner it sets itself on each connection's first use.
//
// # Failure
//
// While there is no pool, and whenever a connection is lost, methods fail at
// once with store.Unavailable. A COMMIT whose answer was lost fails with
// store.Unavailable wrapping store.ErrOutcomeUnknown. What a caller may see is a
// *store.Error; every other error is a defect.
//
// # Concurrency
//
// All methods may be called from any goroutine and from any number of
// controllers. Deadlocks are excluded by one order of row locks: who a worker is
// (worker_details), its telemetry, then workers, in the order of their ids, then
// builds. A build that a worker holds changes only under that worker's lock.
package postgres
