-- Grows when the URL changes. A notice has the version that it was made for, and is not sent
-- to another one, because its subscription's secrets belong to the URL too.
ALTER TABLE notice_subscriptions ADD COLUMN IF NOT EXISTS version integer NOT NULL DEFAULT 0;

-- Finds what waits for a subscription, so that each gets its share of the places.
CREATE INDEX IF NOT EXISTS river_job_notices ON river_job ((args->>'subscription'), scheduled_at, id)
WHERE kind = 'notice' AND state = 'available';

-- Finds a subscription's last notices that a worker went or came back.
CREATE INDEX IF NOT EXISTS river_job_notices_of_worker ON river_job ((args->>'subscription'), (args->'body'->'data'->>'id'), created_at)
WHERE kind = 'notice' AND args->'body'->>'type' IN ('worker.offline', 'worker.back');

-- As before, but: a notice has its subscription's version. One that a worker went or came back
-- takes the place of the last such one of this worker, if that was not tried yet: of a worker
-- that goes and comes all the time, only the last is worth telling. After four in five minutes
-- the next waits a minute for it. A row that is locked is left alone, because it is about to
-- be sent, and a transaction that waits for it could be part of a deadlock. A part of a commit's
-- name that is . or .. would lead to other paths of GitHub.
CREATE OR REPLACE FUNCTION insert_notices(event text, platforms text[], labels jsonb, data jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s record;
    flaps CONSTANT boolean := event IN ('worker.offline', 'worker.back');
    due timestamptz := now();
    made jsonb;
BEGIN
    FOR s IN
        SELECT n.id, n.version FROM notice_subscriptions n
        WHERE n.disabled IS NULL AND (n.events = '{}' OR event = ANY (n.events))
            AND (n.platforms = '{}' OR n.platforms && insert_notices.platforms)
            AND (n.labels = '{}' OR insert_notices.labels @> n.labels)
            AND CASE WHEN n.github THEN event LIKE 'build.%'
                    AND insert_notices.labels->>'github' ~ '^(?!\.\.?/)[A-Za-z0-9_.-]+/(?!\.\.?@)[A-Za-z0-9_.-]+@[0-9a-f]{40}$'
                ELSE event <> 'build.submitted' END
    LOOP
        made := jsonb_build_object('subscription', s.id, 'version', s.version, 'id', 'msg_' || replace(gen_random_uuid()::text, '-', ''),
            'body', jsonb_build_object('type', event, 'timestamp', to_jsonb(now()), 'data', data));
        IF flaps THEN
            UPDATE river_job SET args = made WHERE id = (
                SELECT j.id FROM river_job j
                WHERE j.kind = 'notice' AND j.args->'body'->>'type' IN ('worker.offline', 'worker.back')
                    AND j.args->>'subscription' = s.id AND j.args->'body'->'data'->>'id' = data->>'id'
                    AND j.attempt = 0 AND j.state IN ('available', 'scheduled')
                LIMIT 1 FOR UPDATE SKIP LOCKED);
            CONTINUE WHEN FOUND;
            SELECT CASE count(*) WHEN 4 THEN now() + interval '1 minute' ELSE now() END INTO due FROM (
                SELECT j.created_at FROM river_job j
                WHERE j.kind = 'notice' AND j.args->'body'->>'type' IN ('worker.offline', 'worker.back')
                    AND j.args->>'subscription' = s.id AND j.args->'body'->'data'->>'id' = data->>'id'
                ORDER BY j.created_at DESC LIMIT 4
            ) last WHERE last.created_at > now() - interval '5 minutes';
        END IF;
        INSERT INTO river_job (kind, queue, max_attempts, args, scheduled_at) VALUES ('notice', 'notices', 11, made, due);
    END LOOP;
END $$;
