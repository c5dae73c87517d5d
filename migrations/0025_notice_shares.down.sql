DROP INDEX IF EXISTS river_job_notices_of_worker;
DROP INDEX IF EXISTS river_job_notices;
CREATE OR REPLACE FUNCTION insert_notices(event text, platforms text[], labels jsonb, data jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO river_job (kind, queue, max_attempts, args)
    SELECT 'notice', 'notices', 11, jsonb_build_object('subscription', s.id, 'id', 'msg_' || replace(gen_random_uuid()::text, '-', ''),
        'body', jsonb_build_object('type', event, 'timestamp', to_jsonb(now()), 'data', data))
    FROM notice_subscriptions s
    WHERE s.disabled IS NULL AND (s.events = '{}' OR event = ANY (s.events))
        AND (s.platforms = '{}' OR s.platforms && insert_notices.platforms)
        AND (s.labels = '{}' OR insert_notices.labels @> s.labels)
        AND CASE WHEN s.github THEN event LIKE 'build.%' AND insert_notices.labels->>'github' ~ '^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+@[0-9a-f]{40}$'
            ELSE event <> 'build.submitted' END;
END $$;
ALTER TABLE notice_subscriptions DROP COLUMN IF EXISTS version;
