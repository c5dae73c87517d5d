-- What a worker's token says is signed, so the row keeps two integers of it
-- instead of digests, and is written when it changes, not with every poll.
DROP INDEX IF EXISTS workers_current_family, workers_previous_family;
ALTER TABLE workers
    DROP COLUMN IF EXISTS current_family, DROP COLUMN IF EXISTS current_hash, DROP COLUMN IF EXISTS current_expires,
    DROP COLUMN IF EXISTS previous_family, DROP COLUMN IF EXISTS previous_hash, DROP COLUMN IF EXISTS previous_expires,
    DROP COLUMN IF EXISTS poll_seq,
    -- Names it in its tokens; never used again.
    ADD COLUMN IF NOT EXISTS number bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 4294967295),
    -- The highest counter with which it polled, as far as it was written, and the
    -- counter of its last hand-out.
    ADD COLUMN IF NOT EXISTS used   bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS handed bigint NOT NULL DEFAULT 0;
-- Not unique, because checking that would read all dead versions of the row.
CREATE INDEX IF NOT EXISTS workers_number ON workers (number);

-- The counter of the hand-out of a build that is assigned.
ALTER TABLE builds ADD COLUMN IF NOT EXISTS handed bigint NOT NULL DEFAULT 0;
DO $$ BEGIN
    IF EXISTS (SELECT FROM information_schema.columns
        WHERE table_schema = current_schema AND table_name = 'builds' AND column_name = 'place') THEN
        ALTER TABLE builds RENAME COLUMN place TO position;
    END IF;
END $$;

-- Tokens of one installation mean nothing to another that has the same key.
INSERT INTO settings (key, value) VALUES ('installation', to_jsonb(gen_random_uuid()::text)) ON CONFLICT DO NOTHING;
