DROP INDEX IF EXISTS builds_by_submitter_class;
ALTER TABLE access_keys DROP COLUMN IF EXISTS max_priority;
