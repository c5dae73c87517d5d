DROP INDEX IF EXISTS workers_id;
DELETE FROM worker_details d WHERE NOT EXISTS (SELECT FROM workers w WHERE w.id = d.worker_id);
ALTER TABLE workers DROP CONSTRAINT IF EXISTS workers_pkey CASCADE;
ALTER TABLE workers ADD CONSTRAINT workers_pkey PRIMARY KEY (id);
ALTER TABLE worker_details ADD CONSTRAINT worker_details_worker_id_fkey
    FOREIGN KEY (worker_id) REFERENCES workers (id) ON DELETE CASCADE;
