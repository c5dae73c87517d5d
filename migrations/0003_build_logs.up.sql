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
