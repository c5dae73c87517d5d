-- The highest priority with which a key may submit. Keys that exist, and those that controllers of
-- the release before make, have no limit; new ones get theirs from this release.
ALTER TABLE access_keys ADD COLUMN IF NOT EXISTS max_priority integer NOT NULL DEFAULT 10;

-- Finds the classes of a submitter's pending builds, but for the plain ones of ios and android. Its
-- condition is written so that the planner can use it for no other statement, and no other index of
-- pending builds for that one.
CREATE INDEX IF NOT EXISTS builds_by_submitter_class ON builds ((coalesce(submitter, '')), class) WHERE state >= 'pending' AND state <= 'pending' AND class > 2;
