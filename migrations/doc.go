// Package migrations brings a database to the schema that this build of takt
// needs: first River's tables, by River's own migrator, then ours, numbered SQL
// files, one per noun, embedded and run by golang-migrate.
//
// # State
//
// None of its own. River keeps its version in river_migration, golang-migrate ours
// in takt_migrations. Each of our files is one implicit transaction and
// idempotent.
//
// # Failure
//
// Each of River's migrations is one transaction, its version included. A process
// killed in the middle of our file N leaves the version marked dirty. The next
// start runs N again, which is safe because a file either applied as a whole or
// not at all, and is idempotent.
//
// A database of a build before the files were numbered anew is refused with
// ErrEarlierBuild, untouched.
//
// # Concurrency
//
// A session advisory lock lets one process migrate at a time; the others wait up
// to 30 s.
package migrations
