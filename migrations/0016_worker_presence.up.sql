ALTER TABLE workers
    -- How long its last poll might wait for a build, in seconds.
    ADD COLUMN IF NOT EXISTS poll_wait      smallint NOT NULL DEFAULT 0,
    -- When the connection of its parked poll closed before the poll was answered. It
    -- counts while it is not before last_seen_at.
    ADD COLUMN IF NOT EXISTS poll_closed_at timestamptz,
    -- When it unregistered. It counts while it is not before last_seen_at.
    ADD COLUMN IF NOT EXISTS left_at        timestamptz;
