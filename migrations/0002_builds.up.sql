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
    -- it. Being made of the submission's number it is kept by a requeue.
    place          bigint      GENERATED ALWAYS AS (((10 - priority)::bigint << 55) | seq) STORED,
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
CREATE INDEX IF NOT EXISTS builds_queue ON builds (place) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS builds_queue_ios ON builds (place) WHERE state = 'pending' AND platform = 'ios';
CREATE INDEX IF NOT EXISTS builds_queue_android ON builds (place) WHERE state = 'pending' AND platform = 'android';

-- Who holds what: for redelivery, unregistration and the sweep.
CREATE INDEX IF NOT EXISTS builds_held ON builds (worker_id) WHERE state IN ('assigned', 'building');

-- No foreign key to workers: a build outlives its worker, and each claim would
-- pay for the check.
