// Package backup keeps backups of the database and of builds' files in a directory.
//
// # State
//
// A backup is a dump, NAME.sql.gz, and a manifest, NAME.json, which is written last: without
// it there is no backup. All backups share files/: a file is kept under the SHA-256 of its
// content. A certificate is kept as it is sealed, under the SHA-256 of its plain content,
// the id of its build and the SHA-256 of the sealed bytes, because each sealed file opens
// only as that of its build. Encryption keys are never kept.
//
// # Failure
//
// Each file gets its name when all its bytes are on the disk. A backup that was interrupted
// leaves files, which the next one needs not copy, and unfinished ones, which the next one
// removes.
//
// # Concurrency
//
// One process may write to a directory at a time; others may read it.
package backup
