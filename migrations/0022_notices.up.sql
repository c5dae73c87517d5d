-- Who gets notices. Filters that are empty let everything through.
CREATE TABLE IF NOT EXISTS notice_subscriptions (
    id         text        NOT NULL,
    url        text        NOT NULL,
    events     text[]      NOT NULL,
    platforms  text[]      NOT NULL,
    labels     jsonb       NOT NULL,
    -- Sets statuses of GitHub commits; the secret is a token of GitHub.
    github     boolean     NOT NULL,
    -- The secrets that sign, sealed: the current one, and the one before until it ends.
    secrets    bytea       NOT NULL,
    -- Why it gets nothing; NULL if it does.
    disabled   text,
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT notice_subscriptions_pkey PRIMARY KEY (id)
);

-- Inserts a job of River for each subscription that matches. body is what is sent. The queue
-- belongs to notices alone. 11 attempts take a day, see the notices' retries.
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

-- Notices are inserted by triggers, because every statement that changes a state has to do it
-- in its transaction, those of the release before included. A trigger's condition is
-- evaluated without a query, and only what it lets through looks for subscriptions.
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

-- contract: 0.1.0 changes a build's state in the same way, and its changes are noticed too
CREATE OR REPLACE TRIGGER notice_of_build AFTER UPDATE OF state ON builds FOR EACH ROW
WHEN (NEW.state <> OLD.state AND NEW.state IN ('completed', 'failed', 'cancelled', 'pending'))
EXECUTE FUNCTION notice_of_build();

CREATE OR REPLACE FUNCTION notice_of_submit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM notice_subscriptions WHERE github) THEN
        PERFORM insert_notices('build.submitted', ARRAY[b.platform], NEW.labels, jsonb_build_object('id', b.id, 'platform', b.platform, 'labels', NEW.labels))
        FROM builds b WHERE b.seq = NEW.build;
    END IF;
    RETURN NULL;
END $$;

-- contract: 0.1.0 inserts labels in the same way
CREATE OR REPLACE TRIGGER notice_of_submit AFTER INSERT ON build_labels FOR EACH ROW WHEN (NEW.labels ? 'github') EXECUTE FUNCTION notice_of_submit();

-- Finds the newest build of a commit.
CREATE INDEX IF NOT EXISTS build_labels_github ON build_labels ((labels->>'github'), build) WHERE labels ? 'github';

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

-- contract: 0.1.0 changes a worker's status in the same way
CREATE OR REPLACE TRIGGER notice_of_worker AFTER UPDATE OF status, quarantine ON workers FOR EACH ROW
WHEN ((NEW.status = 'offline') <> (OLD.status = 'offline') OR (NEW.quarantine IS NULL) <> (OLD.quarantine IS NULL) AND NEW.status <> 'offline')
EXECUTE FUNCTION notice_of_worker();

CREATE OR REPLACE FUNCTION notice_of_deployment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM insert_notices('deployment.' || CASE NEW.state WHEN 'done' THEN 'completed' ELSE NEW.state END, '{}', '{}',
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'error', NEW.error, 'created_at', NEW.created_at, 'finished_at', NEW.finished_at,
            'repositories', (SELECT count(*) FROM deployment_repos r WHERE r.deployment_id = NEW.id),
            'failed_repositories', (SELECT count(*) FROM deployment_repos r WHERE r.deployment_id = NEW.id AND r.step = 'failed'))));
    RETURN NULL;
END $$;

-- contract: 0.1.0 changes a deployment's state in the same way
CREATE OR REPLACE TRIGGER notice_of_deployment AFTER UPDATE OF state ON deployments FOR EACH ROW
WHEN (NEW.state <> OLD.state AND NEW.state IN ('done', 'failed'))
EXECUTE FUNCTION notice_of_deployment();

CREATE OR REPLACE VIEW sealed_values AS
SELECT kind, id, sealed, substr(sealed, 5, 8) AS key FROM (
    SELECT 'forge credential' AS kind, id, credential AS sealed FROM deployments WHERE credential IS NOT NULL
    UNION ALL
    SELECT 'HubSpot access token', portal_id::text, access_token FROM oauth_tokens
    UNION ALL
    SELECT 'HubSpot refresh token', portal_id::text, refresh_token FROM oauth_tokens
    UNION ALL
    SELECT 'key check', 'database', sealed FROM key_check
    UNION ALL
    SELECT 'notice secrets', id, secrets FROM notice_subscriptions
) v;
