// Package backup keeps backups of the database and of builds' files in a directory.
//
// # State
//
// A backup is a dump, NAME.sql.gz, and a manifest, NAME.json, which is written last: without
// it there is no backup. All backups share files/: a file is kept under the SHA-256 of its
// content. A certificate stays sealed. Its name holds the SHA-256 of its plain
// content, the id of its build and the SHA-256 of the sealed bytes, because a sealed file
// can be opened only for its build. Encryption keys are never part of a backup.
//
// # Failure
//
// A file gets its name after it was synced to disk. An interrupted backup leaves complete
// files, which the next backup reuses, and incomplete ones, which the next backup removes.
//
// # Concurrency
//
// One process may write to a directory at a time; others may read it.
package backup
