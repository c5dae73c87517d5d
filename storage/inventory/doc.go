// Package inventory compares what the database says of files with what lies in
// storage, and moves files from one location to another.
//
// # State
//
// None. What is to be done is found in the rows, so that whatever was killed in
// the middle is taken up by running it again.
//
// # Failure
//
// A file that is missing or damaged is a finding, and keeps no other from its
// turn. A database, an S3 or a disk that can't be used ends the work.
//
// A file is moved in an order that never leaves a row without it: copy, check
// the copy's digest, change the row if it still says what it said, and only then
// remove, if that is wanted.
//
// # Concurrency
//
// Safe beside any number of running controllers: rows are changed by compare and
// set. An Inventory's methods may be called by several goroutines.
package inventory
