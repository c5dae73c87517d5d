ALTER TABLE builds DROP COLUMN IF EXISTS given_back;
ALTER TABLE workers
    DROP COLUMN IF EXISTS attempts,
    DROP COLUMN IF EXISTS rests_until,
    DROP COLUMN IF EXISTS quarantine,
    DROP COLUMN IF EXISTS quarantines;
