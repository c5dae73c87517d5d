package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store/seal"
)

// Inspection is what to check about a database before takt uses it.
type Inspection struct {
	// Version is PostgreSQL's server_version_num, such as 150018.
	Version  int
	Standby  bool
	Encoding string
	// MayCreate is true if this login may create tables in the current schema.
	MayCreate bool
	// Connections is how many connections the server accepts from ordinary logins.
	Connections int
	// Lax names the settings with which committed work can be lost, such as "fsync is off".
	Lax []string
	// Standbys is how many standbys replicate the server. Settings has the values of the
	// settings that decide what a failover loses and how long statements may take.
	Standbys int
	Settings map[string]string
	// Ahead is how far the server's clock is ahead of this machine's; negative if behind.
	Ahead time.Duration
	// Keys is why the given keys can't open the database's check value; nil if they can, or
	// if there is none.
	Keys error
}

const (
	sqlInspect = `/* inspect */
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), getdatabaseencoding(),
	coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
	current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
	ARRAY(SELECT name || ' is off' FROM pg_settings
		WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes') AND setting = 'off' ORDER BY 1),
	clock_timestamp(), (SELECT count(*) FROM pg_stat_replication),
	(SELECT json_object_agg(name, setting) FROM pg_settings WHERE name IN ('synchronous_standby_names', 'synchronous_commit',
		'wal_level', 'max_wal_senders', 'wal_log_hints', 'data_checksums', 'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout'))`
	sqlHasKeyCheck = `/* has_key_check */ SELECT to_regclass('key_check') IS NOT NULL`
)

// Inspect reads the properties of a database, migrated or not, over a connection of its own,
// and changes nothing. keys may be nil.
func Inspect(ctx context.Context, cfg *pgx.ConnConfig, keys *seal.Ring) (in Inspection, err error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return in, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var now time.Time
	before := time.Now()
	err = conn.QueryRow(ctx, sqlInspect).Scan(&in.Version, &in.Standby, &in.Encoding, &in.MayCreate, &in.Connections, &in.Lax, &now, &in.Standbys, &in.Settings)
	if err != nil {
		return in, fmt.Errorf("looking at the database: %w", err)
	}
	in.Ahead = now.Sub(before.Add(time.Since(before) / 2))
	checked := false
	if err := conn.QueryRow(ctx, sqlHasKeyCheck).Scan(&checked); err != nil || !checked || keys == nil {
		return in, err
	}
	var sealed []byte
	err = conn.QueryRow(ctx, sqlReadKeyCheck).Scan(&sealed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return in, nil
	case err != nil:
		return in, fmt.Errorf("checking the encryption key: %w", err)
	}
	in.Keys = openKeyCheck(keys, sealed)
	return in, nil
}
