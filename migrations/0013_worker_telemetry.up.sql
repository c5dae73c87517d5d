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
