-- The newest part of a running build's log after its first 48 MiB: a row for each post of
-- its worker. begins is builds.log_bytes before the post, number that of its first line.
CREATE TABLE IF NOT EXISTS build_log_tails (
    build    bigint      NOT NULL,
    begins   bigint      NOT NULL,
    number   integer     NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    levels   text[]      NOT NULL,
    messages text[]      NOT NULL,
    kind     text,
    facts    jsonb,
    CONSTRAINT build_log_tails_pkey PRIMARY KEY (build, begins)
);

-- Moves a build's tail to the end of its log, after a line that says how many lines are
-- missing. It runs under the lock of the build's row and before the row changes, so the line
-- that says how the attempt ended follows.
CREATE OR REPLACE FUNCTION append_log_tail() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept build_log_tails;
    missing integer;
BEGIN
    SELECT * INTO kept FROM build_log_tails WHERE build = NEW.seq ORDER BY begins LIMIT 1;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    SELECT kept.number - 1 - number INTO missing FROM build_logs WHERE build = NEW.seq AND number IS NOT NULL ORDER BY seq DESC LIMIT 1;
    IF missing > 0 THEN
        INSERT INTO build_logs (build, number, at, level, message, kind)
        VALUES (NEW.seq, kept.number - 1, kept.at, 'warn', '… ' || replace(to_char(missing, 'FM999,999,999'), ',', ' ')
            || ' lines left out: the log reached its limit of 64 MiB …', 'log_limit');
    END IF;
    INSERT INTO build_logs (build, number, at, level, message, by_worker, kind, facts)
    SELECT t.build, t.number + l.nr - 1, t.at, l.level, l.message, true, t.kind, t.facts
    FROM build_log_tails t, unnest(t.levels, t.messages) WITH ORDINALITY AS l(level, message, nr)
    WHERE t.build = NEW.seq ORDER BY t.begins, l.nr;
    DELETE FROM build_log_tails WHERE build = NEW.seq;
    RETURN NEW;
END $$;

-- It is a trigger because every end of an attempt has to do it, those that the release
-- before writes included. 50331648 is store.MaxLogHead.
-- contract: 0.1.0 changes a build's state in the same way, and reads and writes the same rows
CREATE OR REPLACE TRIGGER append_log_tail BEFORE UPDATE OF state ON builds FOR EACH ROW
WHEN (OLD.log_bytes > 50331648 AND OLD.state IN ('assigned', 'building') AND NEW.state NOT IN ('assigned', 'building'))
EXECUTE FUNCTION append_log_tail();
