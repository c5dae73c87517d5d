-- queue_position returns the position of the next build of a submitter: of start-time fair
-- queueing. While nothing is pending it is behind every position that can have been issued, so a
-- build that is requeued later keeps its place before the builds that come then. Classes that
-- no worker serves do not count, except the build's own: their first builds stay where they are,
-- and every submitter without pending builds would start before the backlog of the others. Until
-- the end of the transaction it keeps the submitter's other transactions from reading the same last
-- position, because they would get one place for many builds. It is volatile: a query that
-- begins after the lock sees what was committed before.
CREATE OR REPLACE FUNCTION queue_position(in_platform text, in_priority integer, who text, in_classes integer[]) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    low    bigint := (10 - in_priority)::bigint << 55;
    high   bigint := (11 - in_priority)::bigint << 55;
    last   bigint;
    first  bigint;
    counts boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('takt queue ' || in_priority || in_platform || ' ' || who, 0));
    -- The first of all is most often the first of those that count.
    SELECT b.position, (SELECT k.platform = in_platform AND (k.served OR k.id = ANY (in_classes)) FROM build_classes k WHERE k.id = b.class) INTO first, counts
    FROM builds b WHERE b.state = 'pending' AND b.position >= low AND b.position < high ORDER BY b.position, b.seq LIMIT 1;
    IF first IS NOT NULL AND counts IS NOT TRUE THEN
        -- The first position of each class of the platform, one look-up for each class.
        WITH RECURSIVE c AS (
            (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 ORDER BY b.class LIMIT 1)
            UNION ALL
            SELECT (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class > c.class ORDER BY b.class LIMIT 1) FROM c WHERE c.class IS NOT NULL
        )
        SELECT coalesce(min(f.position) FILTER (WHERE k.served OR k.id = ANY (in_classes)), min(f.position)) INTO first
        FROM c JOIN build_classes k ON k.id = c.class AND k.platform = in_platform CROSS JOIN LATERAL (
            SELECT b.position FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class = c.class AND b.position >= low AND b.position < high
            ORDER BY b.class, b.position LIMIT 1
        ) f;
    END IF;
    IF first IS NULL THEN
        RETURN low + 65536 * (SELECT last_value + 1 FROM builds_seq_seq);
    END IF;
    SELECT position INTO last FROM builds
    WHERE state = 'pending' AND attempt >= 0 AND coalesce(submitter, '') = who AND platform = in_platform AND position >= low AND position < high
    ORDER BY position DESC LIMIT 1;
    IF last IS NULL THEN
        RETURN first;
    END IF;
    RETURN greatest(first, last + queue_cost(who));
END $$;

ALTER TABLE build_classes DROP COLUMN IF EXISTS apart;
