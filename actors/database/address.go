package database

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The login and the database of an embedded server.
const (
	databaseUser = "takt"
	databaseName = "takt"
)

// SQL states that classify a failed connection.
const (
	stateInvalidPassword   = "28P01"
	stateInvalidAuth       = "28000"
	stateUnknownDatabase   = "3D000"
	stateDuplicateDatabase = "42P04"
)

// connConfig returns the configuration of connections to the cluster's server.
func (cl *cluster) connConfig(database string) (*pgx.ConnConfig, error) {
	// Every key is set, so that the PG… variables of takt's environment, which are for other
	// databases, have no effect.
	cfg, err := pgx.ParseConfig(fmt.Sprintf(
		"host=/ port=%d user=%s password=%s dbname=%s sslmode=disable connect_timeout=10 target_session_attrs=any",
		socketPort, databaseUser, cl.password, database))
	if err != nil {
		return nil, fmt.Errorf("addressing the embedded database: %w", err)
	}
	cfg.Host = cl.dir // shown in messages; dialling goes through the open directory
	cfg.Fallbacks = nil
	cfg.RuntimeParams = map[string]string{"application_name": "takt"}
	dial := dialIn(cl.home, cl.dir)
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	return cfg, nil
}

// dialIn returns a function that connects to the server's socket in the open directory. A path
// through the descriptor is shorter than the 107 bytes that a socket address may have, however
// long the real path is. The directory must stay open while the function runs.
func dialIn(home *os.File, realPath string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (conn net.Conn, err error) {
		var dialer net.Dialer
		if !hasProc {
			return dialer.DialContext(ctx, "unix", filepath.Join(realPath, socketName()))
		}
		raw, err := home.SyscallConn()
		if err != nil {
			return nil, err
		}
		closed := raw.Control(func(fd uintptr) {
			conn, err = dialer.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(int(fd))+"/"+socketName())
		})
		if closed != nil {
			return nil, fmt.Errorf("the embedded database is stopped: %w", closed)
		}
		return conn, err
	}
}

const sqlHasDatabase = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`

// probe checks that the server answers. It creates takt's database if the cluster is new.
func (cl *cluster) probe(ctx context.Context) error {
	cfg, err := cl.connConfig("postgres")
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connecting to the embedded database: %w", err)
	}
	defer conn.Close(ctx) // the server drops the session anyway
	var exists bool
	if err := conn.QueryRow(ctx, sqlHasDatabase, databaseName).Scan(&exists); err != nil {
		return fmt.Errorf("querying the embedded database: %w", err)
	}
	if exists {
		return nil
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+databaseName)
	if err != nil && sqlState(err) != stateDuplicateDatabase {
		return fmt.Errorf("making the database %s: %w", databaseName, err)
	}
	return nil
}

// sqlState returns the SQL state of a server error, and "" for any other error.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// refused reports whether the server rejected takt's login, which waiting does not fix.
func refused(err error) bool {
	state := sqlState(err)
	return state == stateInvalidPassword || state == stateInvalidAuth
}
