ALTER TABLE worker_details DROP COLUMN IF EXISTS conflict_from;
ALTER TABLE worker_details DROP COLUMN IF EXISTS conflict_at;
ALTER TABLE workers DROP COLUMN IF EXISTS instance;
