-- The budget that a queue has spent. It comes back one period after the call was
-- answered, or had to be: until then its completions may lie in a window of one
-- period with those of the next call.
CREATE TABLE IF NOT EXISTS throttle_windows (
    id         bigint      GENERATED ALWAYS AS IDENTITY,
    queue      bigint      NOT NULL,
    claim      bigint      NOT NULL,
    n          integer     NOT NULL CHECK (n > 0),
    taken_at   timestamptz NOT NULL DEFAULT now(),
    -- The answer, or the end of the claim while there is none. The period is
    -- added when it is read, so that a changed one counts at once.
    ended_at   timestamptz NOT NULL,
    CONSTRAINT throttle_windows_pkey PRIMARY KEY (id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX IF NOT EXISTS throttle_windows_queue ON throttle_windows (queue, ended_at);
CREATE INDEX IF NOT EXISTS throttle_windows_claim ON throttle_windows (claim);
