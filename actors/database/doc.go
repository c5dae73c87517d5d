// Package database keeps takt's way to PostgreSQL open: the embedded server, the
// connection pool and the listener, three children of a rest_for_one
// supervisor. No other package holds a connection: users get the pool through a
// Sink and give it up when the Sink's Drop is called.
//
// # State
//
// Postgres (postgres.go) owns the server process and the open cluster
// directory, DATA_DIR/postgres. The server takes connections only through a
// socket in that directory and only with the password in
// DATA_DIR/postgres.password; it runs as an account that is not root, reaches
// its directory through an inherited descriptor and sends its log through the
// named pipe DATA_DIR/postgres.stderr. Pool (pool.go) owns the pgx pool and a
// connection of its own for health checks. Listener (listener.go) owns one
// connection that LISTENs. A restart loses nothing, because all state comes from
// the disk and the database.
//
// # Failure
//
// A server that ends (crash, kill -9) ends its actor with the reason; the
// supervisor restarts the server, then pool and listener. A server that outlived
// a killed takt is adopted if it answers, else it is stopped and started again.
// A cluster is made under another name and renamed when it is on the disk, so
// that kill -9 never leaves an incomplete one.
//
// A database that is away, refuses the login or fails a migration is an outage:
// pool and listener report "suspended" with the reason, give the pool up, and
// try again after 1 to 30 s. An outage never crashes them and never uses up a
// restart. The start fails only if an earlier build of takt made the database,
// or if the database does not open with the given keys.
//
// # Concurrency
//
// The handles (Postgres, Pool, Listener) are safe for concurrent use and
// survive restarts. ConnConfig and Ready take no locks.
// Slow work runs in goroutines of the incarnation and comes back as messages.
package database
