ALTER TABLE workers
    DROP COLUMN IF EXISTS left_at,
    DROP COLUMN IF EXISTS poll_closed_at,
    DROP COLUMN IF EXISTS poll_wait;
