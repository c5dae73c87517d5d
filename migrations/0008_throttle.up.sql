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

-- The actions that HubSpot was told are taken. One is finished once, visibly:
-- completed, given_up or expired. What makes an action unique names it, because
-- each index is paid for by every webhook.
CREATE TABLE IF NOT EXISTS action_executions (
    queue       bigint      NOT NULL,
    portal_id   bigint      NOT NULL,
    callback_id text        COLLATE "C" NOT NULL,
    state       text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'completed', 'given_up', 'expired')),
    -- When it may be sent (again): at once, at the end of a claim, of a pause
    -- after a failure, or of a hold.
    due_at      timestamptz NOT NULL DEFAULT now(),
    -- The claim that it is sent under; who shows another one has lost it.
    claim       bigint      NOT NULL DEFAULT 0,
    failures    integer     NOT NULL DEFAULT 0,
    -- Its tries are used up; HubSpot is still to hear FAIL_CONTINUE.
    giving_up   boolean     NOT NULL DEFAULT false,
    received_at timestamptz NOT NULL DEFAULT now(),
    -- HubSpot goes on without it then.
    expires_at  timestamptz NOT NULL,
    finished_at timestamptz,
    last_error  text,
    CONSTRAINT action_executions_pkey PRIMARY KEY (portal_id, callback_id),
    CONSTRAINT action_executions_finished CHECK ((state = 'waiting') = (finished_at IS NULL))
) WITH (
    fillfactor = 80,
    -- Dead entries at the head of the hot index slow every claim: vacuum early.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- What waits, in the order of claims.
CREATE INDEX IF NOT EXISTS action_executions_waiting ON action_executions (queue, due_at) WHERE state = 'waiting';
-- What can be deleted, in the order in which it ended.
CREATE INDEX IF NOT EXISTS action_executions_finished ON action_executions (finished_at) WHERE finished_at IS NOT NULL;

CREATE SEQUENCE IF NOT EXISTS throttle_claims;

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
