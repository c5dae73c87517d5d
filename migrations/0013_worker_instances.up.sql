-- Which process holds the worker: it names itself when it registers. NULL if it did not.
ALTER TABLE workers ADD COLUMN IF NOT EXISTS instance text;

-- When another process was last refused because of that, and its address.
ALTER TABLE worker_details ADD COLUMN IF NOT EXISTS conflict_at timestamptz;
ALTER TABLE worker_details ADD COLUMN IF NOT EXISTS conflict_from text;
