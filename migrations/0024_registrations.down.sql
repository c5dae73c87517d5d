ALTER TABLE worker_details DROP COLUMN IF EXISTS registration;
ALTER TABLE worker_details DROP COLUMN IF EXISTS process;
