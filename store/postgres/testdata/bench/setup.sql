-- The tables of assigned.sql and idle.sql, as a controller has them that gives each
-- poll a transaction of its own.
--
--   psql -v workers=64 -v pending=100000 -f setup.sql DATABASE
--
-- Worker number N is found by token family N; pgbench client C polls as worker
-- C + 1, so there must be at least as many workers as clients. There must be
-- more pending builds than polls, or assigned.sql measures failing polls.
\set ON_ERROR_STOP on

CREATE TABLE naive_workers (
    id               text        NOT NULL,
    current_family   bigint,
    current_hash     bytea,
    current_expires  timestamptz,
    previous_family  bigint,
    previous_hash    bytea,
    previous_expires timestamptz,
    poll_seq         bigint      NOT NULL DEFAULT 0,
    status           text        NOT NULL DEFAULT 'idle',
    held             integer     NOT NULL DEFAULT 0,
    slots            integer     NOT NULL DEFAULT 1,
    platforms        text[]      NOT NULL DEFAULT '{}',
    registered_at    timestamptz NOT NULL DEFAULT now(),
    last_seen_at     timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON naive_workers (id);
CREATE INDEX ON naive_workers (current_family);
CREATE INDEX ON naive_workers (previous_family);

CREATE TABLE naive_builds (
    seq            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id             text        NOT NULL,
    platform       text        NOT NULL,
    state          text        NOT NULL DEFAULT 'pending',
    priority       smallint    NOT NULL DEFAULT 0,
    place          bigint      GENERATED ALWAYS AS (((10 - priority)::bigint << 55) | seq) STORED,
    worker_id      text,
    attempt        integer     NOT NULL DEFAULT 0,
    token_hash     bytea       NOT NULL,
    submitted_at   timestamptz NOT NULL DEFAULT now(),
    started_at     timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ON naive_builds (place) WHERE state = 'pending';
CREATE INDEX ON naive_builds (place) WHERE state = 'pending' AND platform = 'ios';
CREATE INDEX ON naive_builds (place) WHERE state = 'pending' AND platform = 'android';
CREATE INDEX ON naive_builds (worker_id) WHERE state IN ('assigned', 'building');

CREATE TABLE naive_logs (
    build   bigint      NOT NULL,
    seq     bigint      GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT now(),
    level   text        NOT NULL DEFAULT 'info',
    message text        NOT NULL,
    PRIMARY KEY (build, seq)
);

INSERT INTO naive_workers (id, current_family, current_hash, current_expires, slots)
SELECT 'bench-worker-' || lpad(i::text, 8, '0'), i, sha256(i::text::bytea), now() + interval '1 day', 1000000000
FROM generate_series(1, :workers) i;

INSERT INTO naive_builds (id, platform, token_hash)
SELECT left(md5(i::text), 21), 'ios', sha256(i::text::bytea) FROM generate_series(1, :pending) i;

INSERT INTO naive_logs (build, message) SELECT seq, 'Build submitted' FROM naive_builds;

VACUUM ANALYZE;
CHECKPOINT;
