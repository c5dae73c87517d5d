ALTER TABLE workers
    -- Why it is suspect: its builds fail while other workers complete the like. NULL if it is not.
    -- These are columns of their own because the release before ends a quarantine after one trial.
    ADD COLUMN IF NOT EXISTS suspect         text,
    ADD COLUMN IF NOT EXISTS suspect_since   timestamptz,
    -- The classes of the builds that failed.
    ADD COLUMN IF NOT EXISTS suspect_classes integer[],
    -- Rests so far, and trials completed in a row. rests_until is until when it rests.
    ADD COLUMN IF NOT EXISTS suspect_rests   smallint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS suspect_trials  smallint NOT NULL DEFAULT 0,
    -- Whether it gets builds as before, because too few other workers can take a class.
    ADD COLUMN IF NOT EXISTS suspect_served  boolean  NOT NULL DEFAULT false;

-- True if it failed on a suspect worker, or made it one.
ALTER TABLE builds ADD COLUMN IF NOT EXISTS suspect boolean;

-- As before, with suspects.
CREATE OR REPLACE FUNCTION notice_of_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    event  text := CASE WHEN NEW.status = 'offline' THEN 'offline' WHEN NEW.suspect IS NOT NULL AND OLD.suspect IS NULL THEN 'suspect'
        WHEN NEW.quarantine IS NOT NULL THEN 'quarantined' WHEN NEW.suspect IS NOT NULL THEN 'suspect' ELSE 'back' END;
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
                WHEN 'suspect' THEN NEW.suspect ELSE NEW.quarantine END, 'last_seen_at', NEW.last_seen_at)));
    RETURN NULL;
END $$;

-- contract: 0.1.0 changes a worker's status in the same way, and never makes one suspect
CREATE OR REPLACE TRIGGER notice_of_worker AFTER UPDATE OF status, quarantine, suspect ON workers FOR EACH ROW
WHEN ((NEW.status = 'offline') <> (OLD.status = 'offline')
    OR ((NEW.quarantine IS NULL) <> (OLD.quarantine IS NULL) OR (NEW.suspect IS NULL) <> (OLD.suspect IS NULL)) AND NEW.status <> 'offline')
EXECUTE FUNCTION notice_of_worker();
