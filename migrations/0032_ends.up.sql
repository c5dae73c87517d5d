-- Since when a build waits, who ended it and why, and which build it repeats.

-- builds.ended also says what ended a build that no command ended, such as cancelled or lost.
ALTER TABLE builds
    -- When it became pending again last. NULL before that, and after the release before has made it
    -- so, which sets updated_at then.
    ADD COLUMN IF NOT EXISTS waiting_since timestamptz,
    -- Who cancelled it, and the reason that was given.
    ADD COLUMN IF NOT EXISTS ended_by      text,
    ADD COLUMN IF NOT EXISTS ended_why     text,
    -- The number of the build that it repeats. NULL in retries that the release before inserts.
    ADD COLUMN IF NOT EXISTS retry_of      bigint;

-- Finds the retries of a build. For a retry of a retry that the release before inserted, that is the
-- first of them all. Most builds are none and have no entry.
CREATE INDEX IF NOT EXISTS builds_retried ON builds ((coalesce(retry_of, retry_root))) WHERE retry_root IS NOT NULL;

-- As before, with what ended the build.
CREATE OR REPLACE FUNCTION notice_of_build() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    labels jsonb;
    facts  jsonb;
    how    text := split_part(NEW.ended, ':', 1);
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
            'ended', CASE WHEN NEW.state IN ('failed', 'cancelled') OR NEW.state = 'pending' AND how IS NOT NULL THEN jsonb_build_object(
                'cause', CASE NEW.state WHEN 'cancelled' THEN 'cancelled' WHEN 'failed' THEN CASE WHEN how IN ('exit', 'signal') THEN 'failed' ELSE coalesce(how, 'failed') END END,
                'by', NEW.ended_by, 'why', NEW.ended_why,
                'exit_code', CASE how WHEN 'exit' THEN split_part(NEW.ended, ':', 2)::bigint END,
                'signal', CASE how WHEN 'signal' THEN split_part(NEW.ended, ':', 2)::bigint END,
                'timed_out', CASE how WHEN 'timeout' THEN true END) END,
            'submitted_at', NEW.submitted_at, 'started_at', NEW.started_at, 'completed_at', NEW.completed_at)) || coalesce(facts, '{}'));
    RETURN NULL;
END $$;
