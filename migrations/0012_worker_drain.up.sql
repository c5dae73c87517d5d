-- Neither has an index: a poll's update stays HOT.
ALTER TABLE workers
    -- An operator wants it to get no builds. Registering does not end that.
    ADD COLUMN IF NOT EXISTS draining boolean NOT NULL DEFAULT false,
    -- Its last diagnostic report is critical.
    ADD COLUMN IF NOT EXISTS critical boolean NOT NULL DEFAULT false;
