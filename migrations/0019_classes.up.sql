-- The classes of work: builds of one class can be taken by the same workers. A class is never
-- changed or deleted, so its number always means the same. 1 and 2 are store.IOSClass and
-- store.AndroidClass.
CREATE TABLE IF NOT EXISTS build_classes (
    id              integer     GENERATED ALWAYS AS IDENTITY (START WITH 16) PRIMARY KEY,
    platform        text        NOT NULL,
    -- A store.Require in its only form; empty for none.
    require         text        NOT NULL DEFAULT '',
    -- Since when no known worker could take its builds. Kept while a time limit for that is
    -- set and builds of it are pending.
    unmatched_since timestamptz,
    CONSTRAINT build_classes_key UNIQUE (platform, require)
);
INSERT INTO build_classes (id, platform) OVERRIDING SYSTEM VALUE VALUES (1, 'ios'), (2, 'android') ON CONFLICT DO NOTHING;

-- NULL for builds that ended before this migration. All others have one: controllers of the
-- release before leave it out, and the trigger adds it.
ALTER TABLE builds ADD COLUMN IF NOT EXISTS class integer;

CREATE OR REPLACE FUNCTION set_build_class() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.class := (SELECT id FROM build_classes WHERE platform = NEW.platform AND require = '');
    RETURN NEW;
END $$;

-- contract: 0.1.0 inserts no class, and reads and writes the other columns as before
CREATE OR REPLACE TRIGGER set_build_class BEFORE INSERT ON builds FOR EACH ROW WHEN (NEW.class IS NULL) EXECUTE FUNCTION set_build_class();

-- contract: 0.1.0 does not know the column; at most the builds of one queue change
UPDATE builds SET class = CASE platform WHEN 'ios' THEN 1 ELSE 2 END WHERE class IS NULL AND state IN ('pending', 'assigned', 'building');

-- The queue of one class. Workers that take several classes read builds_queue. The condition
-- class > 0 is always true: the planner can use this index only for statements that have it,
-- and never for those that it would have to sort for.
CREATE INDEX IF NOT EXISTS builds_by_class ON builds (class, position, seq) WHERE state = 'pending' AND class > 0;

-- contract: 0.1.0 claims by builds_queue instead
DROP INDEX IF EXISTS builds_queue_ios;
-- contract: as before
DROP INDEX IF EXISTS builds_queue_android;

-- The setting platforms says which ones exist.
-- contract: 0.1.0 checks platforms before it inserts a build
ALTER TABLE builds DROP CONSTRAINT IF EXISTS builds_platform_check;
ALTER TABLE builds ADD CONSTRAINT builds_platform_check CHECK (platform <> '') NOT VALID;

-- What a build prefers of a worker's labels; NULL for nothing.
ALTER TABLE build_labels ADD COLUMN IF NOT EXISTS prefer text;

-- The worker's labels; NULL for none. Beside its platforms, because claims go by both.
ALTER TABLE workers ADD COLUMN IF NOT EXISTS labels jsonb;
