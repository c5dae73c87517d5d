// Package migrations brings a database to the schema that this build of takt
// needs: numbered SQL files, embedded, run by golang-migrate.
//
// # State
//
// None of its own; golang-migrate keeps the version in schema_migrations. Each
// file is one implicit transaction and idempotent.
//
// # Failure
//
// A process killed in the middle of file N leaves the version marked dirty. The
// next start runs N again, which is safe because a file either applied as a
// whole or not at all, and is idempotent.
//
// # Concurrency
//
// A session advisory lock lets one process migrate at a time; the others wait up
// to 30 s.
package migrations
