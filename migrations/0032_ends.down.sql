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
DROP INDEX IF EXISTS builds_retried;
ALTER TABLE builds
    DROP COLUMN IF EXISTS retry_of,
    DROP COLUMN IF EXISTS ended_why,
    DROP COLUMN IF EXISTS ended_by,
    DROP COLUMN IF EXISTS waiting_since;
