// Package database connects takt to PostgreSQL, and runs PostgreSQL itself if no external
// database is configured. It has three actors under a rest_for_one supervisor: the embedded
// server, the connection pool and the listener. Users receive the pool through PoolUser.Use and
// must stop using it at PoolUser.Drop.
//
// # State
//
// Postgres (postgres.go) owns the server process and the open cluster
// directory, DATA_DIR/postgres. The server accepts connections only through a
// socket in that directory and only with the password in
// DATA_DIR/postgres.password. It runs as an account that is not root, accesses
// its directory through an inherited descriptor and writes its log to the
// named pipe DATA_DIR/postgres.stderr. Pool (pool.go) owns the pgx pool and a
// separate connection for health checks (open_pool.go); pool_outage.go is what it does without
// a database. Listener (listener.go) owns the connection for LISTEN. A restart loses nothing, because all state is on the disk
// and in the database.
//
// # Failure
//
// When the server process ends (crash, kill -9), its actor fails with the reason
// and the supervisor restarts the server, then pool and listener. If a server of a
// takt that was killed still runs, it is adopted if it answers, and restarted
// otherwise. A new cluster is created under a temporary name and renamed once it is
// synced to disk, so that kill -9 never leaves an incomplete one.
//
// If the database is unreachable, refuses the login or fails a migration, that is
// an outage: pool and listener report "suspended" with the reason, drop the pool,
// and retry after 1 to 30 s. Outages don't count as crashes and use up no restarts.
// The start fails only if an earlier build of takt created the database, or if the
// configured keys don't open it.
//
// # Concurrency
//
// The handles (Postgres, Pool, Listener) are safe for concurrent use and
// survive restarts. ConnConfig and Ready take no locks.
// Slow work runs in goroutines of the incarnation; its results arrive as messages.
package database
