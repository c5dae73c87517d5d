-- A worker's row changes with its work, so it is narrow, has no index on anything
-- that a poll changes, and half of each page is left free: updates stay HOT
-- (heap-only) and pages prune themselves.
--
-- While somebody holds an old snapshot, dead versions of a row can't be vacuumed,
-- and a unique index looks at all of them for each new one. So this table has
-- none. Who a worker is, is decided by worker_details alone: whoever adds a row to
-- workers holds the lock of its row there. No foreign key either, because each
-- update would pay for it; who deletes a worker deletes both rows.
CREATE TABLE IF NOT EXISTS workers (
    id            text        NOT NULL,
    status        text        NOT NULL DEFAULT 'idle' CHECK (status IN ('idle', 'building', 'offline')),
    -- How many builds name this worker as their holder.
    held          integer     NOT NULL DEFAULT 0 CHECK (held >= 0),
    slots         integer     NOT NULL DEFAULT 1 CHECK (slots >= 1),
    -- Platforms that it takes; empty means all.
    platforms     text[]      NOT NULL DEFAULT '{}',
    registered_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    completed     integer     NOT NULL DEFAULT 0,
    failed        integer     NOT NULL DEFAULT 0,
    -- An operator wants it to get no builds. Registering does not end that.
    draining      boolean     NOT NULL DEFAULT false,
    -- Its last diagnostic report is critical.
    critical      boolean     NOT NULL DEFAULT false,
    -- Names it in its tokens; never used again. What a token says is signed, so
    -- the row keeps two integers of it, and is written when they change, not with
    -- every poll.
    number        bigint      GENERATED ALWAYS AS IDENTITY (MAXVALUE 4294967295),
    -- The highest counter with which it polled, as far as it was written, and the
    -- counter of its last hand-out.
    used          bigint      NOT NULL DEFAULT 0,
    handed        bigint      NOT NULL DEFAULT 0
) WITH (
    fillfactor = 50,
    -- Small and hot: vacuum by number of changes, at full speed.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 500
);

CREATE INDEX IF NOT EXISTS workers_id ON workers (id);
CREATE INDEX IF NOT EXISTS workers_number ON workers (number);

-- What a poll never reads.
CREATE TABLE IF NOT EXISTS worker_details (
    worker_id    text  PRIMARY KEY,
    name         text  NOT NULL,
    capabilities jsonb NOT NULL
);

-- The fleet as people read it.
CREATE INDEX IF NOT EXISTS worker_details_name ON worker_details (lower(name) COLLATE "C", worker_id);

-- The last telemetry of each worker, and the sum and number of its figures of
-- processor load. Per worker, so that nobody waits for another's row.
CREATE TABLE IF NOT EXISTS worker_telemetry (
    worker_id      text        PRIMARY KEY REFERENCES worker_details (worker_id) ON DELETE CASCADE,
    build_id       text        NOT NULL,
    at             timestamptz NOT NULL DEFAULT now(),
    type           text        NOT NULL,
    stage          text,
    cpu_percent    double precision,
    memory_mb      double precision,
    disk_percent   double precision,
    processes      double precision,
    uptime_seconds double precision,
    cpu_sum        double precision NOT NULL DEFAULT 0,
    cpu_count      bigint           NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
