DELETE FROM settings WHERE key = 'installation';
DO $$ BEGIN
    IF EXISTS (SELECT FROM information_schema.columns
        WHERE table_schema = current_schema AND table_name = 'builds' AND column_name = 'position') THEN
        ALTER TABLE builds RENAME COLUMN position TO place;
    END IF;
END $$;
ALTER TABLE builds DROP COLUMN IF EXISTS handed;
DROP INDEX IF EXISTS workers_number;
ALTER TABLE workers
    DROP COLUMN IF EXISTS number, DROP COLUMN IF EXISTS used, DROP COLUMN IF EXISTS handed,
    ADD COLUMN IF NOT EXISTS current_family   bigint,
    ADD COLUMN IF NOT EXISTS current_hash     bytea,
    ADD COLUMN IF NOT EXISTS current_expires  timestamptz,
    ADD COLUMN IF NOT EXISTS previous_family  bigint,
    ADD COLUMN IF NOT EXISTS previous_hash    bytea,
    ADD COLUMN IF NOT EXISTS previous_expires timestamptz,
    ADD COLUMN IF NOT EXISTS poll_seq         bigint NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS workers_current_family ON workers (current_family) WHERE current_family IS NOT NULL;
CREATE INDEX IF NOT EXISTS workers_previous_family ON workers (previous_family) WHERE previous_family IS NOT NULL;
