// Package storetest gives tests a real PostgreSQL: an empty, migrated database
// for each test, made in a few milliseconds as a clone of a template.
//
// If TAKT_TEST_DATABASE_URL is set, databases are made on that server; its user
// needs CREATEDB. Otherwise the first test of a binary starts a server of its
// own, with a private socket below /tmp and without fsync, which ends with the
// test binary, however that ends.
//
// # State
//
// One server and one template per test binary.
//
// # Failure
//
// Whatever is missing fails the test that asks for a database, with the reason.
//
// # Concurrency
//
// Tests with databases may run in parallel: they share nothing but the server.
package storetest
