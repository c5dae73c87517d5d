-- A worker's row changes with every poll, so it is narrow, has no index on
-- anything that a poll changes, and half of each page is left free: updates stay
-- HOT (heap-only) and pages prune themselves.
CREATE TABLE IF NOT EXISTS workers (
    id               text        PRIMARY KEY,
    -- Families find the row of a token (see store.TokenHash); they stay when
    -- the token rotates. NULL when there is no such token.
    current_family   bigint,
    current_hash     bytea,
    current_expires  timestamptz,
    previous_family  bigint,
    previous_hash    bytea,
    previous_expires timestamptz,
    -- Grows with every poll, registration and unregistration.
    poll_seq         bigint      NOT NULL DEFAULT 0,
    status           text        NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'building', 'offline')),
    -- How many builds name this worker as their holder.
    held             integer     NOT NULL DEFAULT 0 CHECK (held >= 0),
    slots            integer     NOT NULL DEFAULT 1 CHECK (slots >= 1),
    -- Platforms that it takes; empty means all.
    platforms        text[]      NOT NULL DEFAULT '{}',
    registered_at    timestamptz NOT NULL DEFAULT now(),
    last_seen_at     timestamptz NOT NULL DEFAULT now(),
    completed        integer     NOT NULL DEFAULT 0,
    failed           integer     NOT NULL DEFAULT 0
) WITH (
    fillfactor = 50,
    -- Small and hot: vacuum by number of changes, at full speed.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 500
);

CREATE INDEX IF NOT EXISTS workers_current_family ON workers (current_family) WHERE current_family IS NOT NULL;
CREATE INDEX IF NOT EXISTS workers_previous_family ON workers (previous_family) WHERE previous_family IS NOT NULL;

-- What a poll never reads.
CREATE TABLE IF NOT EXISTS worker_details (
    worker_id    text  PRIMARY KEY REFERENCES workers (id) ON DELETE CASCADE,
    name         text  NOT NULL,
    capabilities jsonb NOT NULL
);
