// Package janitor deletes files and rows that are no longer needed, and uploads copies still
// missing in S3.
//
// Janitor (handle: [Janitor]) makes a round every hour. On this controller's own disk
// it removes temporary files that are no longer written to, and files that no row
// names. Then, if no other controller did so within the hour, it removes files and rows
// whose retention is over, and objects in S3 that no row names. Independently of the
// rounds it checks every few seconds whether S3 answers, and copies files to S3 whose
// copies are due.
//
// # State
//
// Whether a round or a copy is running, and metrics. All of it may be lost, because the
// work to do is found again in the database and on the disk.
//
// # Failure
//
// If the database or S3 is away, that is an outage: the round ends, copies are retried
// with a back-off of up to half a minute, and the tree shows the process as suspended.
// A file that can't be removed or copied is counted, logged and tried again later. It
// does not delay other files.
//
// A file that no row names is removed only if it is old, and its build's row is locked
// meanwhile. Otherwise the row of a file is removed before the file. So a crash at any
// point leaves at worst a file too many, which the next round removes.
//
// # Concurrency
//
// The handle may be used by any goroutine. The actor does no I/O itself: one
// goroutine at a time makes the round, another one copies. Several controllers may do
// so at once.
package janitor
