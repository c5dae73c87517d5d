package postgres

import (
	"context"
	"encoding/json"
)

// sqlStatistics returns one JSON object, so that columns that differ between versions of
// PostgreSQL need no Go types. It leaves out the texts of statements, because those of
// utility statements have values in them, and settings that may have secrets.
const sqlStatistics = `/* statistics */
SELECT json_build_object(
	'settings', (SELECT json_object_agg(name, setting ORDER BY name) FROM pg_settings WHERE name IN (
		'server_version', 'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'max_wal_size', 'checkpoint_timeout',
		'max_connections', 'shared_buffers', 'work_mem', 'maintenance_work_mem', 'effective_cache_size', 'random_page_cost',
		'autovacuum', 'autovacuum_naptime', 'autovacuum_vacuum_scale_factor', 'jit')),
	'database', (SELECT to_json(d) FROM pg_stat_database d WHERE datname = current_database()),
	'size_bytes', pg_database_size(current_database()),
	'tables', (SELECT json_agg(t ORDER BY t.total_bytes DESC) FROM (
		SELECT *, pg_total_relation_size(relid) AS total_bytes FROM pg_stat_user_tables) t),
	'indexes', (SELECT json_agg(i ORDER BY i.bytes DESC) FROM (
		SELECT *, pg_relation_size(indexrelid) AS bytes FROM pg_stat_user_indexes) i),
	'writer', (SELECT to_json(b) FROM pg_stat_bgwriter b),
	'wal', (SELECT to_json(w) FROM pg_stat_wal w),
	'sessions', (SELECT json_agg(s) FROM (
		SELECT application_name, backend_type, state, wait_event_type, wait_event, count(*),
			extract(epoch FROM max(clock_timestamp() - xact_start)) AS oldest_transaction_seconds
		FROM pg_stat_activity WHERE datname = current_database() GROUP BY 1, 2, 3, 4, 5) s),
	'locks_waited_for', (SELECT count(*) FROM pg_locks WHERE NOT granted))`

// Statistics returns the rows of PostgreSQL's statistics views for this database, as a JSON
// object.
func (db *DB) Statistics(ctx context.Context) (json.RawMessage, error) {
	return valueOf[json.RawMessage](ctx, db.read("reading the database's statistics"), sqlStatistics)
}
