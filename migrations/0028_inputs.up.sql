-- Parameters, secrets and limits of builds, and how they ended. A build that has some must never
-- run without them, whichever release hands it out.

ALTER TABLE builds
    -- Whether its worker has to ask for more than files: the build has a row in build_inputs or
    -- labels. NULL in rows that the release before inserts.
    ADD COLUMN IF NOT EXISTS has_inputs boolean,
    -- How the command ended: exit:CODE, signal:NUMBER or timeout. NULL if that is not known.
    ADD COLUMN IF NOT EXISTS ended text;

-- Only builds that have inputs have a row.
CREATE TABLE IF NOT EXISTS build_inputs (
    build           bigint      NOT NULL,
    -- The first of the builds of which this one is a retry, or the build itself. NULL if the row
    -- has facts only.
    root            bigint,
    params          jsonb,
    params_optional boolean     NOT NULL DEFAULT false,
    -- The secrets that it asks for, by name: env or file.
    secrets         jsonb,
    timeout_s       integer,
    max_attempts    smallint,
    retry_on        smallint[],
    -- Commit, branch, dirty, remote.
    facts           jsonb,
    -- While a build waits to be retried by exit code, its class is 0. This is the class that it
    -- returns to, and when. Both are NULL for all others.
    home_class      integer,
    due_at          timestamptz,
    -- How often it was retried by exit code.
    retries         smallint    NOT NULL DEFAULT 0,
    CONSTRAINT build_inputs_pkey PRIMARY KEY (build),
    CONSTRAINT build_inputs_build_fkey FOREIGN KEY (build) REFERENCES builds (seq) ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS build_inputs_root ON build_inputs (root) WHERE root IS NOT NULL;
-- The builds that wait for their retry.
CREATE INDEX IF NOT EXISTS build_inputs_due ON build_inputs (due_at) WHERE due_at IS NOT NULL;

-- What a worker had used of its counter when a controller of this release registered it last.
ALTER TABLE workers ADD COLUMN IF NOT EXISTS registered_at_count bigint;

-- Labels whose names begin with "takt:" say what a worker's program can do. A controller of this
-- release sets them when it registers the worker. 0.1.0 leaves labels as they are, although it may
-- have registered an older program with the same id.
CREATE OR REPLACE FUNCTION forget_features() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE workers SET labels = (SELECT jsonb_object_agg(key, value) FROM jsonb_each(labels) WHERE NOT starts_with(key, 'takt:'))
    WHERE number = NEW.number;
    RETURN NULL;
END $$;

-- A trigger before the update would make every update of a worker lock the row first.
-- contract: 0.1.0 sets slots when it registers a worker, and nowhere else; it reads no labels
CREATE OR REPLACE TRIGGER forget_features AFTER UPDATE OF slots ON workers FOR EACH ROW
WHEN (NEW.labels IS NOT NULL AND NEW.labels::text LIKE '%"takt:%' AND NEW.registered_at_count IS DISTINCT FROM NEW.used)
EXECUTE FUNCTION forget_features();

-- Keeps builds that need a feature, and those that wait for their retry (class 0), from 0.1.0, which
-- claims by state and platform alone. It fails a build that the database refuses to assign. If the
-- database refuses that too, it passes over the build from then on, and goes on with those behind.
-- 0e9fdba2 can't read classes that require a feature, and claims nothing of them.
CREATE OR REPLACE FUNCTION keep_from_010() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state = 'pending' AND (NEW.class = 0 OR EXISTS (SELECT FROM build_classes WHERE id = NEW.class AND require LIKE '%takt:%')) THEN
        RAISE EXCEPTION 'build % waits for a newer controller: this release of takt would run it without its parameters, secrets or limits', NEW.id;
    END IF;
    RETURN NEW;
END $$;

-- The conditions are short, because each statement that sets the column parses them. 0.1.0 is the
-- only release that hands a build out without a numbered line in its log.
-- contract: 0.1.0 gives the polling worker the next build then
CREATE OR REPLACE TRIGGER keep_from_010 BEFORE UPDATE OF attempt ON builds FOR EACH ROW
WHEN (NEW.log_lines = OLD.log_lines)
EXECUTE FUNCTION keep_from_010();

CREATE OR REPLACE FUNCTION keep_from_failing() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 'failed' AND NEW.error_message LIKE 'No worker can take this build: it needs % with %takt:%' THEN
        RETURN NULL;
    ELSIF NEW.state = 'failed' AND NEW.log_lines = OLD.log_lines AND NEW.error_message = 'Build cannot be assigned: the database refuses it'
        AND (NEW.class = 0 OR EXISTS (SELECT FROM build_classes WHERE id = NEW.class AND require LIKE '%takt:%')) THEN
        RAISE EXCEPTION 'build % waits for a newer controller', NEW.id;
    END IF;
    RETURN NEW;
END $$;

-- contract: 0.1.0 passes over the build, see above; 0e9fdba2 takes a class that it can't read for one without workers, and would fail its builds with this text
CREATE OR REPLACE TRIGGER keep_from_failing BEFORE UPDATE OF error_message ON builds FOR EACH ROW
WHEN (OLD.state = 'pending')
EXECUTE FUNCTION keep_from_failing();

-- Older controllers count the attempts of all builds alike. Their statements read what became of the
-- build after this has decided again.
CREATE OR REPLACE FUNCTION count_attempts() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most smallint := (SELECT max_attempts FROM build_inputs WHERE build = NEW.seq);
BEGIN
    IF NEW.state = 'pending' AND NEW.lost + NEW.given_back >= most THEN
        NEW.state := 'failed';
        NEW.worker_id := OLD.worker_id;
        NEW.started_at := OLD.started_at;
        NEW.last_seen_at := OLD.last_seen_at;
        NEW.completed_at := now();
        NEW.error_message := 'Build lost - the last of its ' || most || ' attempts';
    ELSIF NEW.state = 'failed' AND NEW.lost > OLD.lost AND NEW.lost + NEW.given_back < most THEN
        NEW.state := 'pending';
        NEW.worker_id := NULL;
        NEW.started_at := NULL;
        NEW.last_seen_at := NULL;
        NEW.completed_at := NULL;
        NEW.error_message := NULL;
    END IF;
    RETURN NEW;
END $$;

-- contract: 0.1.0 changes lost only when a build loses an attempt, which it fails or makes pending then
CREATE OR REPLACE TRIGGER count_attempts BEFORE UPDATE OF lost, given_back ON builds FOR EACH ROW
WHEN (NEW.has_inputs AND NEW.lost + NEW.given_back > OLD.lost + OLD.given_back)
EXECUTE FUNCTION count_attempts();

-- Only a pending build waits for its retry. If it is cancelled or fails meanwhile, it has its class
-- again, because its own retry has the same.
CREATE OR REPLACE FUNCTION return_class() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.class := coalesce((SELECT home_class FROM build_inputs WHERE build = NEW.seq), NEW.class);
    UPDATE build_inputs SET home_class = NULL, due_at = NULL WHERE build = NEW.seq;
    RETURN NEW;
END $$;

-- contract: 0.1.0 reads no class; it hands out no such build because of keep_from_010, which fires before
CREATE OR REPLACE TRIGGER return_class BEFORE UPDATE OF state ON builds FOR EACH ROW
WHEN (OLD.class = 0 AND NEW.class = 0 AND NEW.state <> 'pending')
EXECUTE FUNCTION return_class();

-- An older controller copies source, certificates and labels alone. The error is one with which it
-- answers 503: another controller can do it.
CREATE OR REPLACE FUNCTION refuse_retry_without_inputs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM build_inputs WHERE root = NEW.retry_root) THEN
        RAISE EXCEPTION 'the build has parameters, secrets or limits, which this release of takt would not copy: retry it at a newer controller'
            USING ERRCODE = 'query_canceled';
    END IF;
    RETURN NEW;
END $$;

-- contract: 0.1.0 refuses the retry; every other insert is as before
CREATE OR REPLACE TRIGGER refuse_retry_without_inputs BEFORE INSERT ON builds FOR EACH ROW
WHEN (NEW.has_inputs IS NULL)
EXECUTE FUNCTION refuse_retry_without_inputs();

-- As before, with how the build ended, and the facts of its commit.
CREATE OR REPLACE FUNCTION notice_of_build() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    labels jsonb;
    facts  jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM notice_subscriptions) THEN
        RETURN NULL;
    END IF;
    labels := coalesce((SELECT l.labels FROM build_labels l WHERE l.build = NEW.seq), '{}');
    IF NEW.has_inputs THEN
        SELECT i.facts INTO facts FROM build_inputs i WHERE i.build = NEW.seq;
    END IF;
    PERFORM insert_notices('build.' || CASE NEW.state WHEN 'pending' THEN 'requeued' ELSE NEW.state END, ARRAY[NEW.platform], labels,
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'platform', NEW.platform, 'labels', labels, 'submitter', NEW.submitter,
            'attempt', NEW.attempt, 'worker_id', coalesce(NEW.worker_id, NEW.last_worker_id), 'error', NEW.error_message,
            'ended', CASE split_part(NEW.ended, ':', 1)
                WHEN 'exit' THEN jsonb_build_object('exit_code', split_part(NEW.ended, ':', 2)::bigint)
                WHEN 'signal' THEN jsonb_build_object('signal', split_part(NEW.ended, ':', 2)::bigint)
                WHEN 'timeout' THEN '{"timed_out": true}' END,
            'submitted_at', NEW.submitted_at, 'started_at', NEW.started_at, 'completed_at', NEW.completed_at)) || coalesce(facts, '{}'));
    RETURN NULL;
END $$;

-- As before, without the labels that stand for features.
CREATE OR REPLACE FUNCTION notice_of_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    event  text := CASE WHEN NEW.status = 'offline' THEN 'offline' WHEN NEW.quarantine IS NOT NULL THEN 'quarantined' ELSE 'back' END;
    labels jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM notice_subscriptions) THEN
        RETURN NULL;
    END IF;
    labels := coalesce((SELECT jsonb_object_agg(key, value) FROM jsonb_each(NEW.labels) WHERE NOT starts_with(key, 'takt:')), '{}');
    PERFORM insert_notices('worker.' || event, coalesce(nullif(NEW.platforms, '{}'), '{ios,android}'), labels,
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'name', (SELECT d.name FROM worker_details d WHERE d.worker_id = NEW.id),
            'platforms', to_jsonb(coalesce(nullif(NEW.platforms, '{}'), '{ios,android}')), 'labels', labels,
            'reason', CASE event WHEN 'offline' THEN CASE WHEN NEW.left_at >= NEW.last_seen_at THEN 'unregistered' ELSE 'silent' END
                ELSE NEW.quarantine END, 'last_seen_at', NEW.last_seen_at)));
    RETURN NULL;
END $$;
