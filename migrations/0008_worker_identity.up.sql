-- While somebody holds an old snapshot, nothing that polls leave behind can be
-- vacuumed, and a unique index looks at every dead version of a worker for each
-- new one: polls would soon do nothing else. So the rows that polls write have
-- none. Who a worker is, is decided by worker_details alone: whoever adds a row to
-- workers holds the lock of its row there. No foreign key, because each poll
-- would pay for it; who deletes a worker deletes both rows.
ALTER TABLE worker_details DROP CONSTRAINT IF EXISTS worker_details_worker_id_fkey;
ALTER TABLE workers DROP CONSTRAINT IF EXISTS workers_pkey;
CREATE INDEX IF NOT EXISTS workers_id ON workers (id);
