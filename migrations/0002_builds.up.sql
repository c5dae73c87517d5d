CREATE TABLE IF NOT EXISTS builds (
    -- Number of the submission. Logs and files refer to a build by it: half as
    -- wide as the id, and neighbours in time are neighbours in their indexes.
    seq            bigint      GENERATED ALWAYS AS IDENTITY,
    -- As the world knows it; found through build_ids.
    id             text        NOT NULL,
    platform       text        NOT NULL CHECK (platform IN ('ios', 'android')),
    state          text        NOT NULL DEFAULT 'pending'
                               CHECK (state IN ('pending', 'assigned', 'building', 'completed', 'failed', 'cancelled')),
    priority       smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN -10 AND 10),
    -- Where it stands in the queue, smallest first: higher priority, then older
    -- submission. One number, so that a scan of the queue can start anywhere in
    -- it. A requeue keeps it, because it is made of the submission's number.
    position       bigint      GENERATED ALWAYS AS (((10 - priority)::bigint << 55) | seq) STORED,
    -- The holder, or who held it when it ended; NULL while pending.
    worker_id      text,
    -- Who lost it last.
    last_worker_id text,
    -- Assignments so far, never reset.
    attempt        integer     NOT NULL DEFAULT 0,
    -- Attempts that ended by silence.
    lost           integer     NOT NULL DEFAULT 0,
    has_certs      boolean     NOT NULL DEFAULT false,
    token_hash     bytea       NOT NULL,
    submitted_at   timestamptz NOT NULL DEFAULT now(),
    started_at     timestamptz,
    last_seen_at   timestamptz,
    completed_at   timestamptz,
    updated_at     timestamptz NOT NULL DEFAULT now(),
    error_message  text,
    -- The counter of the hand-out of a build that is assigned.
    handed         bigint      NOT NULL DEFAULT 0,
    -- What its worker wrote to its log, and what it tried to beyond the limit.
    log_bytes      bigint      NOT NULL DEFAULT 0,
    -- Of a retry: the build that it and others like it go back to.
    retry_root     bigint,
    CONSTRAINT builds_pkey PRIMARY KEY (seq),
    CONSTRAINT builds_holder CHECK (state NOT IN ('assigned', 'building') OR worker_id IS NOT NULL)
) WITH (
    -- Room for the versions of a build's life on its own page.
    fillfactor = 80,
    -- Dead entries at the head of builds_queue slow every claim: vacuum early.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- A build changes its state several times, and each change writes all of its
-- table's indexes anew. Ids are random, so an index on them in the table itself
-- would cost a page of its own per change; here it is written once.
CREATE TABLE IF NOT EXISTS build_ids (
    id  text   PRIMARY KEY,
    seq bigint NOT NULL
);

-- The queue, as a whole and per platform, because a worker takes one platform or
-- all of them and a claim locks exactly the rows that it takes: it must not step
-- over others. All are in the order of claims, so that whichever the planner
-- takes, with whatever statistics, it never sorts: they may be from a time when
-- nothing was pending.
CREATE INDEX IF NOT EXISTS builds_queue ON builds (position) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS builds_queue_ios ON builds (position) WHERE state = 'pending' AND platform = 'ios';
CREATE INDEX IF NOT EXISTS builds_queue_android ON builds (position) WHERE state = 'pending' AND platform = 'android';

-- Of a build one retry waits at most.
CREATE INDEX IF NOT EXISTS builds_retries ON builds (retry_root) WHERE state = 'pending' AND retry_root IS NOT NULL;

-- Who holds what: for redelivery, unregistration and the sweep. No foreign key to
-- workers: a build outlives its worker, and each claim would pay for the check.
CREATE INDEX IF NOT EXISTS builds_held ON builds (worker_id) WHERE state IN ('assigned', 'building');

-- What people look for among the many that completed.
CREATE INDEX IF NOT EXISTS builds_unsuccessful ON builds (seq) WHERE state IN ('failed', 'cancelled');

-- What ended after rollup.up_to.
CREATE INDEX IF NOT EXISTS builds_ended ON builds (completed_at) WHERE completed_at IS NOT NULL;

-- Append only. No foreign key: it would cost each claim a look-up and a lock on
-- a row that the writing transaction has locked already; builds are not deleted.
CREATE TABLE IF NOT EXISTS build_logs (
    build   bigint      NOT NULL,
    seq     bigint      GENERATED ALWAYS AS IDENTITY,
    at      timestamptz NOT NULL DEFAULT now(),
    level   text        NOT NULL DEFAULT 'info' CHECK (level IN ('info', 'warn', 'error')),
    message text        NOT NULL,
    CONSTRAINT build_logs_pkey PRIMARY KEY (build, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

CREATE TABLE IF NOT EXISTS build_files (
    build    bigint NOT NULL REFERENCES builds (seq) ON DELETE CASCADE,
    kind     text   NOT NULL CHECK (kind IN ('source', 'certs', 'result')),
    name     text   NOT NULL,
    size     bigint NOT NULL CHECK (size >= 0),
    sha256   bytea  NOT NULL CHECK (length(sha256) = 32),
    -- Where it is, its key in S3, and when the copy that S3 is owed is to be tried
    -- next.
    location text   NOT NULL DEFAULT 'local'
        CONSTRAINT build_files_location CHECK (location IN ('local', 's3', 'both')),
    object   text
        CONSTRAINT build_files_object_known CHECK (object IS NOT NULL OR location = 'local'),
    copy_due timestamptz,
    CONSTRAINT build_files_pkey PRIMARY KEY (build, kind)
);

-- The storage sweeper asks whether a file or an object has a row.
CREATE INDEX IF NOT EXISTS build_files_name ON build_files (name);
CREATE UNIQUE INDEX IF NOT EXISTS build_files_object ON build_files (object) WHERE object IS NOT NULL;
CREATE INDEX IF NOT EXISTS build_files_copy_due ON build_files (copy_due) WHERE copy_due IS NOT NULL;

-- What a submitter wrote on its build. Beside the builds' table, because a build
-- changes its state several times, and its labels never.
CREATE TABLE IF NOT EXISTS build_labels (
    build  bigint PRIMARY KEY REFERENCES builds (seq) ON DELETE CASCADE,
    labels jsonb  NOT NULL
);

-- The statistics of all builds that ever ended, by UTC day. Builds that ended
-- after rollup.up_to are not in them yet: readers count those themselves.
CREATE TABLE IF NOT EXISTS build_days (
    day       date   PRIMARY KEY,
    completed bigint NOT NULL DEFAULT 0,
    failed    bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    -- Time from the last assignment to the end, of completed and failed builds.
    build_ms  bigint NOT NULL DEFAULT 0
);

-- One row.
CREATE TABLE IF NOT EXISTS rollup (
    only_row  boolean          PRIMARY KEY DEFAULT true CHECK (only_row),
    up_to     timestamptz      NOT NULL DEFAULT '-infinity',
    -- Telemetry of workers that were deleted, see worker_telemetry.
    cpu_sum   double precision NOT NULL DEFAULT 0,
    cpu_count bigint           NOT NULL DEFAULT 0
);

INSERT INTO rollup DEFAULT VALUES ON CONFLICT DO NOTHING;
