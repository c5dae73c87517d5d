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

-- What readers count themselves.
CREATE INDEX IF NOT EXISTS builds_ended ON builds (completed_at) WHERE completed_at IS NOT NULL;
