// Package janitor keeps storage tidy, and S3 in step with the disk.
//
// Janitor (handle: [Janitor]) makes a round every hour. On this controller's own
// disk it removes temporary files that nobody writes to any more and files that
// no row names. Then, if no other controller did so within the hour, it removes
// what has been kept for long enough, and objects in S3 that no row names.
// Apart from that it looks every few seconds whether S3 answers, and brings it the
// copies that it waits for.
//
// # State
//
// Whether a round or a copy is under way, and figures. All of it may be lost:
// what is to be done is found anew, in the database and on the disk.
//
// # Failure
//
// A database or an S3 that is away is an outage: the round skips its turn, copies
// wait, longer each time up to half a minute, and the tree shows the process as
// suspended. A file that can't be removed or copied is counted, logged and tried
// again later; it keeps no other from its turn.
//
// A file is removed only if it is old, and if its build's row, locked, has none
// for it; a row of a file goes before the file. So a crash at any point leaves
// at worst a file too many, for the next round.
//
// # Concurrency
//
// The handle may be used by any goroutine. The actor does no I/O itself: one
// goroutine at a time makes the round, another one copies. Any number of
// controllers may do so at once.
package janitor
