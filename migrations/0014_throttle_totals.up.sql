-- How many actions of a queue HubSpot has acknowledged as completed. A table of its own,
-- because claims hold the queue's row locked while they may wait for an action's row.
CREATE TABLE IF NOT EXISTS throttle_totals (
    queue     bigint NOT NULL REFERENCES throttle_queues (seq) ON DELETE CASCADE,
    completed bigint NOT NULL,
    CONSTRAINT throttle_totals_pkey PRIMARY KEY (queue)
) WITH (
    -- Small and hot.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
