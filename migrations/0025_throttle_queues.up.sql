-- One row per queue: its lock decides who may spend its budget, and whether its
-- job may end. Locks are taken in the order of the ids.
CREATE TABLE IF NOT EXISTS throttle_queues (
    seq         bigint      GENERATED ALWAYS AS IDENTITY,
    -- queue:{portal}:{workflow}:{action}:{index}; the parts are columns, because
    -- it is not parsed back.
    id          text        COLLATE "C" NOT NULL,
    portal_id   bigint      NOT NULL,
    workflow_id text        NOT NULL,
    action_id   bigint      NOT NULL,
    index       text        NOT NULL,
    -- River's job that answers for this queue having a runner; NULL: none.
    job_id      bigint,
    -- When a runner said last that it looks after this queue.
    runner_at   timestamptz,
    paused_at   timestamptz,
    last_error  text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    received_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT throttle_queues_pkey PRIMARY KEY (seq),
    CONSTRAINT throttle_queues_id UNIQUE (id)
) WITH (
    -- Small and hot.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX IF NOT EXISTS throttle_queues_action ON throttle_queues (portal_id, action_id);
