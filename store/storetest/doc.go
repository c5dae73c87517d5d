// Package storetest gives tests a real PostgreSQL: an empty, migrated database
// for each test, made in a few milliseconds as a clone of a template.
//
// If TAKT_TEST_DATABASE_URL is set, databases are made on that server; its user needs
// CREATEDB. Otherwise the first test of a binary starts a server of its own, with a
// private socket and without fsync, in memory if there is room. It ends with the test binary,
// even if the binary is killed.
//
// # State
//
// One server and one template per test binary.
//
// # Failure
//
// If something is missing, the test that asks for a database fails with the reason.
//
// # Concurrency
//
// Tests with databases may run in parallel: they share nothing but the server.
package storetest
