-- Whether a worker sent the line: it may say anything, also what takt says. Lines from
-- before this column count as such.
ALTER TABLE build_logs ADD COLUMN IF NOT EXISTS by_worker boolean NOT NULL DEFAULT true;
ALTER TABLE build_logs ALTER COLUMN by_worker SET DEFAULT false;
