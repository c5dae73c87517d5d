-- The place of a build in the queue: 10 - priority in the bits from 55 on, below them its tag. A
-- build of a key of weight w costs 65536 / w. No tag is larger than 65536 times the number of the
-- newest build, so 55 bits last for 2^39 builds: 17 years at 1000 a second.
-- contract: 0.1.0 neither writes the column nor knows how its numbers come about
ALTER TABLE builds ALTER COLUMN position DROP EXPRESSION IF EXISTS;

-- How large the share of a key is beside others.
ALTER TABLE access_keys ADD COLUMN IF NOT EXISTS weight integer NOT NULL DEFAULT 1;
-- How many of its builds may be pending; 0 is any number.
ALTER TABLE access_keys ADD COLUMN IF NOT EXISTS max_pending integer NOT NULL DEFAULT 0;

-- Claims and pages read it in this order; statements of 0.1.0, which order by position, too.
CREATE INDEX IF NOT EXISTS builds_in_order ON builds (position, seq) WHERE state = 'pending';
-- contract: 0.1.0 reads builds_in_order instead
DROP INDEX IF EXISTS builds_queue;

-- Finds the last pending build of a submitter. The condition attempt >= 0 is always true: the
-- planner can use this index for no other statement, because it would sort then.
CREATE INDEX IF NOT EXISTS builds_by_submitter ON builds ((coalesce(submitter, '')), platform, position) WHERE state = 'pending' AND attempt >= 0;

CREATE OR REPLACE FUNCTION queue_cost(who text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT 65536 / coalesce((SELECT greatest(weight, 1) FROM access_keys WHERE name = who), 1)
$$;

-- queue_position returns the position of the next build of a submitter: of start-time fair
-- queueing. While nothing is pending it is behind every position that can have been issued, so a
-- build that is requeued later keeps its place before the builds that come then. Until the end of
-- the transaction it keeps the submitter's other transactions from reading the same last
-- position, because they would get one place for many builds. It is volatile: a query that
-- begins after the lock sees what was committed before.
CREATE OR REPLACE FUNCTION queue_position(in_platform text, in_priority integer, who text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    low   bigint := (10 - in_priority)::bigint << 55;
    high  bigint := (11 - in_priority)::bigint << 55;
    last  bigint;
    first bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('takt queue ' || in_priority || in_platform || ' ' || who, 0));
    SELECT position INTO last FROM builds
    WHERE state = 'pending' AND attempt >= 0 AND coalesce(submitter, '') = who AND platform = in_platform AND position >= low AND position < high
    ORDER BY position DESC LIMIT 1;
    -- The first position of each class of the platform, one look-up for each class.
    WITH RECURSIVE c AS (
        (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 ORDER BY b.class LIMIT 1)
        UNION ALL
        SELECT (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class > c.class ORDER BY b.class LIMIT 1) FROM c WHERE c.class IS NOT NULL
    )
    SELECT min(f.position) INTO first FROM c JOIN build_classes k ON k.id = c.class AND k.platform = in_platform CROSS JOIN LATERAL (
        SELECT b.position FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class = c.class AND b.position >= low AND b.position < high
        ORDER BY b.class, b.position LIMIT 1
    ) f;
    IF first IS NULL THEN
        RETURN low + 65536 * (SELECT last_value + 1 FROM builds_seq_seq);
    END IF;
    RETURN greatest(first, last + queue_cost(who));
END $$;

-- What this release writes itself, for controllers of the release before.
CREATE OR REPLACE FUNCTION set_build_position() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.position := CASE WHEN NEW.state = 'pending' THEN queue_position(NEW.platform, NEW.priority, coalesce(NEW.submitter, ''))
        ELSE ((10 - NEW.priority)::bigint << 55) + 65536 * NEW.seq END;
    RETURN NEW;
END $$;

-- contract: 0.1.0 inserts no position, and does not read it before the row is stored
CREATE OR REPLACE TRIGGER set_build_position BEFORE INSERT ON builds FOR EACH ROW WHEN (NEW.position IS NULL) EXECUTE FUNCTION set_build_position();

-- contract: 0.1.0 changes priorities without positions
CREATE OR REPLACE TRIGGER move_build BEFORE UPDATE OF priority ON builds FOR EACH ROW
WHEN (NEW.priority <> OLD.priority AND NEW.position = OLD.position) EXECUTE FUNCTION set_build_position();
