-- Fills a migrated, empty database for assigned.sql and idle.sql.
--
--   psql -v workers=64 -v pending=100000 -f setup.sql DATABASE
--
-- Worker number N is found by token family N; pgbench client C polls as worker
-- C + 1, so there must be at least as many workers as clients. There must be
-- more pending builds than polls, or assigned.sql measures failing polls.
\set ON_ERROR_STOP on

INSERT INTO workers (id, current_family, current_hash, current_expires, slots)
SELECT 'bench-worker-' || lpad(i::text, 8, '0'), i, sha256(i::text::bytea), now() + interval '1 day', 1000000000
FROM generate_series(1, :workers) i;

INSERT INTO worker_details (worker_id, name, capabilities) SELECT id, 'naive', '{}' FROM workers
ON CONFLICT (worker_id) DO NOTHING;

INSERT INTO builds (id, platform, token_hash)
SELECT left(md5(i::text), 21), 'ios', sha256(i::text::bytea) FROM generate_series(1, :pending) i;

INSERT INTO build_ids (id, seq) SELECT id, seq FROM builds;

INSERT INTO build_logs (build, message) SELECT seq, 'Build submitted' FROM builds;

VACUUM ANALYZE;
CHECKPOINT;
