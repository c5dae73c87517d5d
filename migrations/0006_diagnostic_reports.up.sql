-- What workers found out about themselves. Each report is a file too.
CREATE TABLE IF NOT EXISTS diagnostic_reports (
    seq         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          text        NOT NULL UNIQUE,
    worker_id   text        NOT NULL REFERENCES worker_details (worker_id) ON DELETE CASCADE,
    status      text        NOT NULL CHECK (status IN ('healthy', 'warning', 'critical')),
    -- When the worker says that it ran, and when it arrived.
    run_at      timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    duration_ms bigint      NOT NULL,
    auto_fixed  boolean     NOT NULL,
    -- As sent: nobody looks into it here.
    checks      json        NOT NULL,
    -- What the first check that failed said, on one line.
    finding     text        NOT NULL DEFAULT '',
    -- Its file, as in build_files.
    name        text        NOT NULL UNIQUE,
    location    text        NOT NULL,
    object      text        UNIQUE
);

CREATE INDEX IF NOT EXISTS diagnostic_reports_worker ON diagnostic_reports (worker_id, seq);
