-- The actions that HubSpot was told are taken. One is finished once, visibly:
-- completed, given_up or expired.
CREATE TABLE IF NOT EXISTS action_executions (
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    queue       bigint      NOT NULL,
    portal_id   bigint      NOT NULL,
    callback_id text        NOT NULL,
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
    CONSTRAINT action_executions_pkey PRIMARY KEY (id),
    CONSTRAINT action_executions_callback UNIQUE (portal_id, callback_id),
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
CREATE INDEX IF NOT EXISTS action_executions_waiting ON action_executions (queue, due_at, id) WHERE state = 'waiting';
-- What can be deleted. BRIN costs next to nothing and rows end in about the
-- order in which they came.
CREATE INDEX IF NOT EXISTS action_executions_old ON action_executions USING brin (received_at);

CREATE SEQUENCE IF NOT EXISTS throttle_claims;
