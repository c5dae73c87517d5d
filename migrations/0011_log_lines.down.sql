ALTER TABLE build_logs DROP COLUMN IF EXISTS by_worker;
