-- Problems that an operator has acknowledged: pages show them in grey, and notices leave them out.
CREATE TABLE IF NOT EXISTS acknowledgements (
    kind    text        NOT NULL,
    -- What has the problem, such as a worker's id; empty if the kind has only one.
    subject text        NOT NULL,
    made_by text        NOT NULL,
    reason  text        NOT NULL,
    made_at timestamptz NOT NULL DEFAULT now(),
    -- When it is a problem again.
    until   timestamptz NOT NULL,
    CONSTRAINT acknowledgements_pkey PRIMARY KEY (kind, subject)
);

CREATE OR REPLACE FUNCTION notice_of_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    event  text := CASE WHEN NEW.status = 'offline' THEN 'offline' WHEN NEW.suspect IS NOT NULL AND OLD.suspect IS NULL THEN 'suspect'
        WHEN NEW.quarantine IS NOT NULL THEN 'quarantined' WHEN NEW.suspect IS NOT NULL THEN 'suspect' ELSE 'back' END;
    labels jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM notice_subscriptions) THEN
        RETURN NULL;
    END IF;
    -- Who knows that a worker is away needs no notice that it is back, either.
    IF EXISTS (SELECT FROM acknowledgements a WHERE a.subject = NEW.id AND a.until > now() AND a.kind IN ('offline', 'quarantined', 'suspect') AND (a.kind = event OR event = 'back')) THEN
        RETURN NULL;
    END IF;
    labels := coalesce((SELECT jsonb_object_agg(key, value) FROM jsonb_each(NEW.labels) WHERE NOT starts_with(key, 'takt:')), '{}');
    PERFORM insert_notices('worker.' || event, coalesce(nullif(NEW.platforms, '{}'), '{ios,android}'), labels,
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'name', (SELECT d.name FROM worker_details d WHERE d.worker_id = NEW.id),
            'platforms', to_jsonb(coalesce(nullif(NEW.platforms, '{}'), '{ios,android}')), 'labels', labels,
            'reason', CASE event WHEN 'offline' THEN CASE WHEN NEW.left_at >= NEW.last_seen_at THEN 'unregistered' ELSE 'silent' END
                WHEN 'suspect' THEN NEW.suspect ELSE NEW.quarantine END, 'last_seen_at', NEW.last_seen_at)));
    RETURN NULL;
END $$;
