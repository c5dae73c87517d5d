CREATE OR REPLACE FUNCTION notice_of_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    event text := CASE WHEN NEW.status = 'offline' THEN 'offline' WHEN NEW.quarantine IS NOT NULL THEN 'quarantined' ELSE 'back' END;
BEGIN
    IF NOT EXISTS (SELECT FROM notice_subscriptions) THEN
        RETURN NULL;
    END IF;
    PERFORM insert_notices('worker.' || event, coalesce(nullif(NEW.platforms, '{}'), '{ios,android}'), coalesce(NEW.labels, '{}'),
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'name', (SELECT d.name FROM worker_details d WHERE d.worker_id = NEW.id),
            'platforms', to_jsonb(coalesce(nullif(NEW.platforms, '{}'), '{ios,android}')), 'labels', coalesce(NEW.labels, '{}'),
            'reason', CASE event WHEN 'offline' THEN CASE WHEN NEW.left_at >= NEW.last_seen_at THEN 'unregistered' ELSE 'silent' END
                ELSE NEW.quarantine END, 'last_seen_at', NEW.last_seen_at)));
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION notice_of_build() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    labels jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM notice_subscriptions) THEN
        RETURN NULL;
    END IF;
    labels := coalesce((SELECT l.labels FROM build_labels l WHERE l.build = NEW.seq), '{}');
    PERFORM insert_notices('build.' || CASE NEW.state WHEN 'pending' THEN 'requeued' ELSE NEW.state END, ARRAY[NEW.platform], labels,
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'platform', NEW.platform, 'labels', labels, 'submitter', NEW.submitter,
            'attempt', NEW.attempt, 'worker_id', coalesce(NEW.worker_id, NEW.last_worker_id), 'error', NEW.error_message,
            'submitted_at', NEW.submitted_at, 'started_at', NEW.started_at, 'completed_at', NEW.completed_at)));
    RETURN NULL;
END $$;
-- The release before would run these without what they need.
WITH b AS (
    SELECT seq, state, worker_id FROM builds
    WHERE state IN ('pending', 'assigned', 'building') AND (class = 0 OR class IN (SELECT id FROM build_classes WHERE require LIKE '%takt:%'))
), f AS (
    UPDATE builds SET state = 'failed', completed_at = now(), updated_at = now(), log_lines = log_lines + 1,
        error_message = 'takt was set back to a release that can''t give a build parameters, secrets or a time limit: submit it again'
    FROM b WHERE builds.seq = b.seq RETURNING builds.seq, builds.log_lines, builds.error_message
), l AS (
    INSERT INTO build_logs (build, number, level, message, kind) SELECT seq, log_lines, 'error', error_message, 'failed' FROM f
)
UPDATE workers SET held = held - n.builds, status = CASE WHEN status = 'offline' THEN status WHEN held > n.builds THEN 'building' ELSE 'idle' END
FROM (SELECT worker_id, count(*)::int AS builds FROM b WHERE state <> 'pending' GROUP BY 1) n WHERE workers.id = n.worker_id;
UPDATE workers SET labels = (SELECT jsonb_object_agg(key, value) FROM jsonb_each(labels) WHERE NOT starts_with(key, 'takt:')) WHERE labels::text LIKE '%"takt:%';
DROP TRIGGER IF EXISTS count_attempts ON builds;
DROP FUNCTION IF EXISTS count_attempts;
DROP TRIGGER IF EXISTS refuse_retry_without_inputs ON builds;
DROP FUNCTION IF EXISTS refuse_retry_without_inputs;
DROP TRIGGER IF EXISTS return_class ON builds;
DROP FUNCTION IF EXISTS return_class;
DROP TRIGGER IF EXISTS keep_from_010 ON builds;
DROP FUNCTION IF EXISTS keep_from_010;
DROP TRIGGER IF EXISTS keep_from_failing ON builds;
DROP FUNCTION IF EXISTS keep_from_failing;
DROP TRIGGER IF EXISTS forget_features ON workers;
DROP FUNCTION IF EXISTS forget_features;
ALTER TABLE workers DROP COLUMN IF EXISTS registered_at_count;
DO $$ BEGIN
    IF to_regclass('build_inputs') IS NOT NULL THEN -- builds that wait for their retry wait no longer
        UPDATE builds SET class = home_class FROM build_inputs WHERE seq = build AND class = 0 AND home_class IS NOT NULL;
    END IF;
END $$;
DROP TABLE IF EXISTS build_inputs;
ALTER TABLE builds DROP COLUMN IF EXISTS ended, DROP COLUMN IF EXISTS has_inputs;
