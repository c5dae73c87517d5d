ALTER TABLE builds
    DROP COLUMN IF EXISTS sign_gap;
ALTER TABLE workers
    DROP COLUMN IF EXISTS leaving_at,
    DROP COLUMN IF EXISTS poll_every,
    DROP COLUMN IF EXISTS polled_at;
