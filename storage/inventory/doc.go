// Package inventory compares the files that the database names with those in storage,
// and moves files from one location to another.
//
// # State
//
// None. The work is found from the rows, so running it again completes an interrupted
// run.
//
// # Failure
//
// A missing or damaged file is a finding and does not stop the work on others. An
// unusable database, S3 or disk ends the work.
//
// A file is moved in an order in which a row always has its file: copy, check the
// copy's digest, change the row if nobody else changed it, and only then remove the old
// copy, if that is wanted.
//
// # Concurrency
//
// Safe beside any number of running controllers, because rows are changed by compare
// and set. An Inventory's methods may be called by several goroutines.
package inventory
