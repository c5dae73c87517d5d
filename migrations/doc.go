// Package migrations brings a database to the schema that this build of takt needs.
// River's own migrator makes River's tables first. Then golang-migrate runs takt's
// embedded SQL files, which are numbered, one per noun.
//
// # State
//
// None of its own. River keeps its version in river_migration, golang-migrate takt's in
// takt_migrations. Each of takt's files is one implicit transaction and idempotent.
//
// # Failure
//
// Each of River's migrations is one transaction, which includes its version. A process
// killed in the middle of takt's file N leaves the version marked dirty. The next start
// runs N again. That is safe because a file is either applied as a whole or not at all,
// and is idempotent.
//
// A database at a later version than this build's files have is used as it is: each
// version tolerates the release before it (docs/architecture.md, "The schema"). If a later
// release died in the middle of migrating it, migration fails until that one is started
// again.
//
// Migration fails with ErrEarlierBuild on a database made before the files were
// renumbered, and leaves that database unchanged.
//
// # Concurrency
//
// A session advisory lock lets one process migrate at a time; the others wait up
// to 30 s.
package migrations
