-- The last registration that had a number: the process that sent it (its instance), and the
-- number. A registration of the same process with that number or a lower one is late. A
-- registration without a number changes neither.
ALTER TABLE worker_details ADD COLUMN IF NOT EXISTS process text;
ALTER TABLE worker_details ADD COLUMN IF NOT EXISTS registration bigint;
