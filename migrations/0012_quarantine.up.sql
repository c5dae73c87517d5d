ALTER TABLE workers
    -- Its last attempts, newest first: f for one that ended by a fault of the worker
    -- itself, a dot for any other.
    ADD COLUMN IF NOT EXISTS attempts    text        NOT NULL DEFAULT '',
    -- It gets no builds before.
    ADD COLUMN IF NOT EXISTS rests_until timestamptz NOT NULL DEFAULT '-infinity',
    -- Why it is quarantined; NULL if it is not. After its rest it gets one build at a
    -- time.
    ADD COLUMN IF NOT EXISTS quarantine  text,
    -- Back-offs since it last ran a build.
    ADD COLUMN IF NOT EXISTS quarantines smallint    NOT NULL DEFAULT 0;

-- How often workers that could not run it gave it back.
ALTER TABLE builds ADD COLUMN IF NOT EXISTS given_back smallint NOT NULL DEFAULT 0;
