-- What a line of takt says, so that nobody has to read its text: a store.LineKind, the
-- worker and the attempt that it is about, and a store.LineFacts with what else there is.
-- kind is NULL for what a worker wrote, and for lines of the release before.
ALTER TABLE build_logs
    ADD COLUMN IF NOT EXISTS kind    text,
    ADD COLUMN IF NOT EXISTS worker  text,
    ADD COLUMN IF NOT EXISTS attempt integer,
    ADD COLUMN IF NOT EXISTS facts   jsonb;

-- The line's number within its build. Whoever writes lines updates the build's row in the
-- same statement, as it did before, and takes their numbers from log_lines: under that
-- row's lock, which also makes lines visible in the order of seq. So no two lines of a build
-- have one number, whichever controllers write them, and numbers grow with seq. They have
-- gaps where lines were dropped because the log was full.
--
-- The release before changes neither column. Its lines, written before this migration or
-- beside a controller of this release, have no number and take none; seq orders all.
ALTER TABLE build_logs ADD COLUMN IF NOT EXISTS number integer;

-- The largest number of a line of the build's log.
ALTER TABLE builds ADD COLUMN IF NOT EXISTS log_lines integer NOT NULL DEFAULT 0;
