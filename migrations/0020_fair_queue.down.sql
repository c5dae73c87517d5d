DROP TRIGGER IF EXISTS move_build ON builds;
DROP TRIGGER IF EXISTS set_build_position ON builds;
DROP FUNCTION IF EXISTS set_build_position;
DROP FUNCTION IF EXISTS queue_position;
DROP FUNCTION IF EXISTS queue_cost;
DROP INDEX IF EXISTS builds_by_submitter;
DROP INDEX IF EXISTS builds_in_order;
ALTER TABLE access_keys DROP COLUMN IF EXISTS weight, DROP COLUMN IF EXISTS max_pending;
-- Rewrites the table: a plain column can't become a generated one.
ALTER TABLE builds DROP COLUMN IF EXISTS position;
ALTER TABLE builds ADD COLUMN IF NOT EXISTS position bigint GENERATED ALWAYS AS (((10 - priority)::bigint << 55) | seq) STORED;
CREATE INDEX IF NOT EXISTS builds_queue ON builds (position) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS builds_by_class ON builds (class, position, seq) WHERE state = 'pending' AND class > 0;
