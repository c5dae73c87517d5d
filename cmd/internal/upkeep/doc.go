// Package upkeep contains the commands that work on the database and the files of takt serve, with
// its settings, whether it runs or not: backup, restore, rekey, storage and database.
//
// # State
//
// The database, the files and backups. An interrupted command is run again.
//
// # Failure
//
// What is missing or damaged is printed as it is found, and fails the command at its end.
//
// # Concurrency
//
// The lock of the data directory keeps commands apart that need takt to be stopped.
package upkeep
