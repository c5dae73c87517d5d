// Package inventory compares the files that the database names with those in storage,
// and moves files from one location to another.
//
// # State
//
// None. Each run derives its work from the database rows, so that a repeated run
// completes an interrupted one.
//
// # Failure
//
// A missing or damaged file is reported as a finding, and the run continues. The run ends
// if the database, S3 or the disk is unusable.
//
// Moving a file never leaves a row without its file: copy, check the copy's digest,
// update the row unless it has changed meanwhile, and only then remove the old copy, if
// requested.
//
// # Concurrency
//
// Safe beside any number of running controllers, because rows are changed by compare
// and set. An Inventory's methods may be called by several goroutines.
package inventory
