ALTER TABLE action_executions
    DROP CONSTRAINT IF EXISTS action_executions_pkey,
    DROP CONSTRAINT IF EXISTS action_executions_callback;
DROP INDEX IF EXISTS action_executions_waiting, action_executions_finished;
ALTER TABLE action_executions DROP COLUMN IF EXISTS id;
ALTER TABLE action_executions
    ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY,
    ALTER COLUMN callback_id TYPE text,
    ADD CONSTRAINT action_executions_pkey PRIMARY KEY (id),
    ADD CONSTRAINT action_executions_callback UNIQUE (portal_id, callback_id);
CREATE INDEX action_executions_waiting ON action_executions (queue, due_at, id) WHERE state = 'waiting';
CREATE INDEX IF NOT EXISTS action_executions_old ON action_executions USING brin (received_at);
