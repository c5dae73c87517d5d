-- What makes an action unique names it, and each index is paid for by every
-- webhook: the one for the daily cleaning holds only what is finished.
ALTER TABLE action_executions
    DROP CONSTRAINT IF EXISTS action_executions_pkey,
    DROP CONSTRAINT IF EXISTS action_executions_callback;
DROP INDEX IF EXISTS action_executions_waiting, action_executions_old;
ALTER TABLE action_executions
    DROP COLUMN IF EXISTS id,
    ALTER COLUMN callback_id TYPE text COLLATE "C",
    ADD CONSTRAINT action_executions_pkey PRIMARY KEY (portal_id, callback_id);

-- What waits, in the order of claims.
CREATE INDEX action_executions_waiting ON action_executions (queue, due_at) WHERE state = 'waiting';
-- What can be deleted, in the order in which it ended.
CREATE INDEX IF NOT EXISTS action_executions_finished ON action_executions (finished_at) WHERE finished_at IS NOT NULL;
