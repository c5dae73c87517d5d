-- When workers poll, apart from their other signs of life, and how often a build's come.

ALTER TABLE workers
    -- When a poll of it was last known to wait or was answered. NULL if only the release before has
    -- answered it. last_seen_at is also moved by what it sends of its builds.
    ADD COLUMN IF NOT EXISTS polled_at  timestamptz,
    -- The time between its last two polls, in seconds, if they don't wait; at most 40.
    ADD COLUMN IF NOT EXISTS poll_every smallint NOT NULL DEFAULT 0,
    -- When it said that it takes no more builds and will end. It counts until it polls more than
    -- five seconds later, or registers.
    ADD COLUMN IF NOT EXISTS leaving_at timestamptz;

ALTER TABLE builds
    -- The longest time between two signs of life in this attempt, in seconds, at most 75. NULL before
    -- the second.
    ADD COLUMN IF NOT EXISTS sign_gap smallint;
