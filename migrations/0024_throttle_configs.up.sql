-- How many completions an action definition of a portal may have in any period.
-- A row that was deleted stays for the actions that still wait: they keep their
-- last rate, and new ones are refused.
CREATE TABLE IF NOT EXISTS throttle_configs (
    portal_id      bigint      NOT NULL,
    action_id      bigint      NOT NULL,
    max_throughput integer     NOT NULL CHECK (max_throughput > 0),
    -- The period is time_period time_units.
    time_period    integer     NOT NULL CHECK (time_period > 0),
    time_unit      text        NOT NULL CHECK (time_unit IN ('second', 'minute', 'hour', 'day')),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    deleted_at     timestamptz,
    CONSTRAINT throttle_configs_pkey PRIMARY KEY (portal_id, action_id)
);
