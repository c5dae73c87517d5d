-- The schema after all migrations: to be read, not executed. Written by make docs; a test compares
-- it with a database that was migrated. Why something is as it is stands in the migrations, and
-- what it is for in docs/architecture.md. River's own tables (river_*) are left out.

CREATE TABLE access_keys (
    name text NOT NULL,
    digest bytea NOT NULL,
    scopes text[] NOT NULL,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    revoked_at timestamp with time zone,
    weight integer NOT NULL DEFAULT 1,
    max_pending integer NOT NULL DEFAULT 0,
    worker text,
    enrolled boolean NOT NULL DEFAULT false,
    max_priority integer NOT NULL DEFAULT 10,
    CONSTRAINT access_keys_pkey PRIMARY KEY (name),
    CONSTRAINT access_keys_digest UNIQUE (digest)
);

CREATE TABLE acknowledgements (
    kind text NOT NULL,
    subject text NOT NULL,
    made_by text NOT NULL,
    reason text NOT NULL,
    made_at timestamp with time zone NOT NULL DEFAULT now(),
    until timestamp with time zone NOT NULL,
    CONSTRAINT acknowledgements_pkey PRIMARY KEY (kind, subject)
);

CREATE TABLE action_executions (
    queue bigint NOT NULL,
    portal_id bigint NOT NULL,
    callback_id text COLLATE "C" NOT NULL,
    state text NOT NULL DEFAULT 'waiting'::text,
    due_at timestamp with time zone NOT NULL DEFAULT now(),
    claim bigint NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    giving_up boolean NOT NULL DEFAULT false,
    received_at timestamp with time zone NOT NULL DEFAULT now(),
    expires_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    last_error text,
    CONSTRAINT action_executions_pkey PRIMARY KEY (portal_id, callback_id),
    CONSTRAINT action_executions_finished CHECK (((state = 'waiting'::text) = (finished_at IS NULL))),
    CONSTRAINT action_executions_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'completed'::text, 'given_up'::text, 'expired'::text])))
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.05);
CREATE INDEX action_executions_finished ON action_executions USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX action_executions_waiting ON action_executions USING btree (queue, due_at) WHERE (state = 'waiting'::text);

CREATE TABLE audit (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamp with time zone NOT NULL DEFAULT now(),
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    detail jsonb NOT NULL DEFAULT '{}'::jsonb,
    outcome text,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
);

CREATE TABLE build_classes (
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    platform text NOT NULL,
    require text NOT NULL DEFAULT ''::text,
    unmatched_since timestamp with time zone,
    served boolean NOT NULL DEFAULT true,
    apart integer[],
    CONSTRAINT build_classes_pkey PRIMARY KEY (id),
    CONSTRAINT build_classes_key UNIQUE (platform, require)
);

CREATE TABLE build_days (
    day date NOT NULL,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    build_ms bigint NOT NULL DEFAULT 0,
    CONSTRAINT build_days_pkey PRIMARY KEY (day)
);

CREATE TABLE build_files (
    build bigint NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    size bigint NOT NULL,
    sha256 bytea NOT NULL,
    location text NOT NULL DEFAULT 'local'::text,
    object text,
    copy_due timestamp with time zone,
    CONSTRAINT build_files_pkey PRIMARY KEY (build, kind),
    CONSTRAINT build_files_build_fkey FOREIGN KEY (build) REFERENCES builds(seq) ON DELETE CASCADE,
    CONSTRAINT build_files_kind_check CHECK ((kind = ANY (ARRAY['source'::text, 'certs'::text, 'result'::text]))),
    CONSTRAINT build_files_location CHECK ((location = ANY (ARRAY['local'::text, 's3'::text, 'both'::text]))),
    CONSTRAINT build_files_object_known CHECK (((object IS NOT NULL) OR (location = 'local'::text))),
    CONSTRAINT build_files_sha256_check CHECK ((length(sha256) = 32)),
    CONSTRAINT build_files_size_check CHECK ((size >= 0))
);
CREATE INDEX build_files_copy_due ON build_files USING btree (copy_due) WHERE (copy_due IS NOT NULL);
CREATE INDEX build_files_name ON build_files USING btree (name);
CREATE UNIQUE INDEX build_files_object ON build_files USING btree (object) WHERE (object IS NOT NULL);

CREATE TABLE build_ids (
    id text NOT NULL,
    seq bigint NOT NULL,
    CONSTRAINT build_ids_pkey PRIMARY KEY (id)
);

CREATE TABLE build_inputs (
    build bigint NOT NULL,
    root bigint,
    params jsonb,
    params_optional boolean NOT NULL DEFAULT false,
    secrets jsonb,
    timeout_s integer,
    max_attempts smallint,
    retry_on smallint[],
    facts jsonb,
    home_class integer,
    due_at timestamp with time zone,
    retries smallint NOT NULL DEFAULT 0,
    CONSTRAINT build_inputs_pkey PRIMARY KEY (build),
    CONSTRAINT build_inputs_build_fkey FOREIGN KEY (build) REFERENCES builds(seq) ON DELETE CASCADE
);
CREATE INDEX build_inputs_due ON build_inputs USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX build_inputs_root ON build_inputs USING btree (root) WHERE (root IS NOT NULL);

CREATE TABLE build_labels (
    build bigint NOT NULL,
    labels jsonb NOT NULL,
    prefer text,
    CONSTRAINT build_labels_pkey PRIMARY KEY (build),
    CONSTRAINT build_labels_build_fkey FOREIGN KEY (build) REFERENCES builds(seq) ON DELETE CASCADE
);
CREATE INDEX build_labels_github ON build_labels USING btree (((labels ->> 'github'::text)), build) WHERE (labels ? 'github'::text);
CREATE TRIGGER notice_of_submit AFTER INSERT ON build_labels FOR EACH ROW WHEN ((new.labels ? 'github'::text)) EXECUTE FUNCTION notice_of_submit();

CREATE TABLE build_log_tails (
    build bigint NOT NULL,
    begins bigint NOT NULL,
    number integer NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT now(),
    levels text[] NOT NULL,
    messages text[] NOT NULL,
    kind text,
    facts jsonb,
    CONSTRAINT build_log_tails_pkey PRIMARY KEY (build, begins)
);

CREATE TABLE build_logs (
    build bigint NOT NULL,
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamp with time zone NOT NULL DEFAULT now(),
    level text NOT NULL DEFAULT 'info'::text,
    message text NOT NULL,
    by_worker boolean NOT NULL DEFAULT false,
    kind text,
    worker text,
    attempt integer,
    facts jsonb,
    number integer,
    CONSTRAINT build_logs_pkey PRIMARY KEY (build, seq),
    CONSTRAINT build_logs_level_check CHECK ((level = ANY (ARRAY['info'::text, 'warn'::text, 'error'::text])))
) WITH (autovacuum_vacuum_insert_scale_factor=0.5);

CREATE TABLE builds (
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    id text NOT NULL,
    platform text NOT NULL,
    state text NOT NULL DEFAULT 'pending'::text,
    priority smallint NOT NULL DEFAULT 0,
    "position" bigint,
    worker_id text,
    last_worker_id text,
    attempt integer NOT NULL DEFAULT 0,
    lost integer NOT NULL DEFAULT 0,
    has_certs boolean NOT NULL DEFAULT false,
    token_hash bytea NOT NULL,
    submitted_at timestamp with time zone NOT NULL DEFAULT now(),
    started_at timestamp with time zone,
    last_seen_at timestamp with time zone,
    completed_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    error_message text,
    handed bigint NOT NULL DEFAULT 0,
    log_bytes bigint NOT NULL DEFAULT 0,
    retry_root bigint,
    given_back smallint NOT NULL DEFAULT 0,
    log_lines integer NOT NULL DEFAULT 0,
    submitter text,
    class integer,
    has_inputs boolean,
    ended text,
    suspect boolean,
    sign_gap smallint,
    waiting_since timestamp with time zone,
    ended_by text,
    ended_why text,
    retry_of bigint,
    CONSTRAINT builds_pkey PRIMARY KEY (seq),
    CONSTRAINT builds_holder CHECK (((state <> ALL (ARRAY['assigned'::text, 'building'::text])) OR (worker_id IS NOT NULL))),
    CONSTRAINT builds_platform_check CHECK ((platform <> ''::text)) NOT VALID,
    CONSTRAINT builds_priority_check CHECK (((priority >= '-10'::integer) AND (priority <= 10))),
    CONSTRAINT builds_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'assigned'::text, 'building'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.05);
CREATE INDEX builds_by_class ON builds USING btree (class, "position", seq) WHERE ((state = 'pending'::text) AND (class > 0));
CREATE INDEX builds_by_submitter ON builds USING btree (COALESCE(submitter, ''::text), platform, "position") WHERE ((state = 'pending'::text) AND (attempt >= 0));
CREATE INDEX builds_by_submitter_class ON builds USING btree (COALESCE(submitter, ''::text), class) WHERE ((state >= 'pending'::text) AND (state <= 'pending'::text) AND (class > 2));
CREATE INDEX builds_ended ON builds USING btree (completed_at) WHERE (completed_at IS NOT NULL);
CREATE INDEX builds_held ON builds USING btree (worker_id) WHERE (state = ANY (ARRAY['assigned'::text, 'building'::text]));
CREATE INDEX builds_in_order ON builds USING btree ("position", seq) WHERE (state = 'pending'::text);
CREATE INDEX builds_retried ON builds USING btree (COALESCE(retry_of, retry_root)) WHERE (retry_root IS NOT NULL);
CREATE INDEX builds_retries ON builds USING btree (retry_root) WHERE ((state = 'pending'::text) AND (retry_root IS NOT NULL));
CREATE INDEX builds_unsuccessful ON builds USING btree (seq) WHERE (state = ANY (ARRAY['failed'::text, 'cancelled'::text]));
CREATE TRIGGER append_log_tail BEFORE UPDATE OF state ON builds FOR EACH ROW WHEN (((old.log_bytes > 50331648) AND (old.state = ANY (ARRAY['assigned'::text, 'building'::text])) AND (new.state <> ALL (ARRAY['assigned'::text, 'building'::text])))) EXECUTE FUNCTION append_log_tail();
CREATE TRIGGER count_attempts BEFORE UPDATE OF lost, given_back ON builds FOR EACH ROW WHEN ((new.has_inputs AND ((new.lost + new.given_back) > (old.lost + old.given_back)))) EXECUTE FUNCTION count_attempts();
CREATE TRIGGER keep_from_010 BEFORE UPDATE OF attempt ON builds FOR EACH ROW WHEN ((new.log_lines = old.log_lines)) EXECUTE FUNCTION keep_from_010();
CREATE TRIGGER keep_from_failing BEFORE UPDATE OF error_message ON builds FOR EACH ROW WHEN ((old.state = 'pending'::text)) EXECUTE FUNCTION keep_from_failing();
CREATE TRIGGER move_build BEFORE UPDATE OF priority ON builds FOR EACH ROW WHEN (((new.priority <> old.priority) AND (new."position" = old."position"))) EXECUTE FUNCTION set_build_position();
CREATE TRIGGER notice_of_build AFTER UPDATE OF state ON builds FOR EACH ROW WHEN (((new.state <> old.state) AND (new.state = ANY (ARRAY['completed'::text, 'failed'::text, 'cancelled'::text, 'pending'::text])))) EXECUTE FUNCTION notice_of_build();
CREATE TRIGGER refuse_retry_without_inputs BEFORE INSERT ON builds FOR EACH ROW WHEN ((new.has_inputs IS NULL)) EXECUTE FUNCTION refuse_retry_without_inputs();
CREATE TRIGGER return_class BEFORE UPDATE OF state ON builds FOR EACH ROW WHEN (((old.class = 0) AND (new.class = 0) AND (new.state <> 'pending'::text))) EXECUTE FUNCTION return_class();
CREATE TRIGGER set_build_class BEFORE INSERT ON builds FOR EACH ROW WHEN ((new.class IS NULL)) EXECUTE FUNCTION set_build_class();
CREATE TRIGGER set_build_position BEFORE INSERT ON builds FOR EACH ROW WHEN ((new."position" IS NULL)) EXECUTE FUNCTION set_build_position();

CREATE TABLE deployment_repos (
    deployment_id text NOT NULL,
    name text NOT NULL,
    target text NOT NULL,
    source jsonb NOT NULL,
    step text NOT NULL DEFAULT 'planned'::text,
    run bigint NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    target_id bigint,
    target_url text,
    refs integer NOT NULL DEFAULT 0,
    error text,
    warning text,
    cancelled boolean NOT NULL DEFAULT false,
    made_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT deployment_repos_pkey PRIMARY KEY (deployment_id, name),
    CONSTRAINT deployment_repos_check CHECK (((step = ANY (ARRAY['done'::text, 'failed'::text, 'skipped'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT deployment_repos_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES deployments(id) ON DELETE CASCADE,
    CONSTRAINT deployment_repos_step_check CHECK ((step = ANY (ARRAY['planned'::text, 'creating'::text, 'pushing'::text, 'verifying'::text, 'done'::text, 'failed'::text, 'skipped'::text])))
) WITH (fillfactor=70);
CREATE INDEX deployment_repos_made ON deployment_repos USING btree (made_at) WHERE (made_at IS NOT NULL);

CREATE TABLE deployments (
    id text NOT NULL,
    request jsonb NOT NULL,
    state text NOT NULL DEFAULT 'planning'::text,
    run bigint NOT NULL DEFAULT 0,
    owner text,
    leased_until timestamp with time zone,
    credential bytea,
    credential_id bytea NOT NULL,
    filtered integer NOT NULL DEFAULT 0,
    error text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    planned_at timestamp with time zone,
    finished_at timestamp with time zone,
    CONSTRAINT deployments_pkey PRIMARY KEY (id),
    CONSTRAINT deployments_state_check CHECK ((state = ANY (ARRAY['planning'::text, 'running'::text, 'paused'::text, 'done'::text, 'cancelled'::text, 'failed'::text])))
);
CREATE INDEX deployments_created ON deployments USING btree (created_at DESC, id);
CREATE INDEX deployments_credential ON deployments USING btree (credential_id);
CREATE INDEX deployments_open ON deployments USING btree (id) WHERE (state = ANY (ARRAY['planning'::text, 'running'::text]));
CREATE TRIGGER notice_of_deployment AFTER UPDATE OF state ON deployments FOR EACH ROW WHEN (((new.state <> old.state) AND (new.state = ANY (ARRAY['done'::text, 'failed'::text])))) EXECUTE FUNCTION notice_of_deployment();

CREATE TABLE diagnostic_reports (
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    id text NOT NULL,
    worker_id text NOT NULL,
    status text NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    duration_ms bigint NOT NULL,
    auto_fixed boolean NOT NULL,
    checks json NOT NULL,
    finding text NOT NULL DEFAULT ''::text,
    name text NOT NULL,
    location text NOT NULL,
    object text,
    CONSTRAINT diagnostic_reports_pkey PRIMARY KEY (seq),
    CONSTRAINT diagnostic_reports_id_key UNIQUE (id),
    CONSTRAINT diagnostic_reports_name_key UNIQUE (name),
    CONSTRAINT diagnostic_reports_object_key UNIQUE (object),
    CONSTRAINT diagnostic_reports_status_check CHECK ((status = ANY (ARRAY['healthy'::text, 'warning'::text, 'critical'::text]))),
    CONSTRAINT diagnostic_reports_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES worker_details(worker_id) ON DELETE CASCADE
);
CREATE INDEX diagnostic_reports_worker ON diagnostic_reports USING btree (worker_id, seq);

CREATE TABLE idempotency_keys (
    key bytea NOT NULL,
    content bytea NOT NULL,
    build text NOT NULL,
    reply bytea NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key),
    CONSTRAINT idempotency_keys_content_check CHECK ((length(content) = 32)),
    CONSTRAINT idempotency_keys_key_check CHECK ((length(key) = 32))
);
CREATE INDEX idempotency_keys_age ON idempotency_keys USING btree (created_at);

CREATE TABLE key_check (
    only_row boolean NOT NULL DEFAULT true,
    sealed bytea NOT NULL,
    CONSTRAINT key_check_pkey PRIMARY KEY (only_row),
    CONSTRAINT key_check_only_row_check CHECK (only_row)
);

CREATE TABLE notice_subscriptions (
    id text NOT NULL,
    url text NOT NULL,
    events text[] NOT NULL,
    platforms text[] NOT NULL,
    labels jsonb NOT NULL,
    github boolean NOT NULL,
    secrets bytea NOT NULL,
    disabled text,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    version integer NOT NULL DEFAULT 0,
    CONSTRAINT notice_subscriptions_pkey PRIMARY KEY (id)
);

CREATE TABLE oauth_tokens (
    portal_id bigint NOT NULL,
    access_token bytea NOT NULL,
    refresh_token bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    scopes text NOT NULL DEFAULT ''::text,
    version bigint NOT NULL DEFAULT 1,
    refresh_claim bigint,
    refresh_until timestamp with time zone,
    last_error text,
    installed_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT oauth_tokens_pkey PRIMARY KEY (portal_id)
);

CREATE TABLE rollup (
    only_row boolean NOT NULL DEFAULT true,
    up_to timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone,
    cpu_sum double precision NOT NULL DEFAULT 0,
    cpu_count bigint NOT NULL DEFAULT 0,
    CONSTRAINT rollup_pkey PRIMARY KEY (only_row),
    CONSTRAINT rollup_only_row_check CHECK (only_row)
);

CREATE TABLE secret_handouts (
    build bigint NOT NULL,
    attempt integer NOT NULL,
    names text[] NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT secret_handouts_pkey PRIMARY KEY (build, attempt),
    CONSTRAINT secret_handouts_build_fkey FOREIGN KEY (build) REFERENCES builds(seq) ON DELETE CASCADE
);

CREATE TABLE secrets (
    name text NOT NULL,
    sealed bytea NOT NULL,
    mask boolean NOT NULL,
    is_binary boolean NOT NULL,
    all_keys boolean NOT NULL,
    keys text[] NOT NULL,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_by text NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT secrets_pkey PRIMARY KEY (name)
);

CREATE TABLE settings (
    key text NOT NULL,
    value jsonb NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT settings_pkey PRIMARY KEY (key)
);

CREATE TABLE throttle_configs (
    portal_id bigint NOT NULL,
    action_id bigint NOT NULL,
    max_throughput integer NOT NULL,
    time_period integer NOT NULL,
    time_unit text NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    deleted_at timestamp with time zone,
    CONSTRAINT throttle_configs_pkey PRIMARY KEY (portal_id, action_id),
    CONSTRAINT throttle_configs_max_throughput_check CHECK ((max_throughput > 0)),
    CONSTRAINT throttle_configs_time_period_check CHECK ((time_period > 0)),
    CONSTRAINT throttle_configs_time_unit_check CHECK ((time_unit = ANY (ARRAY['second'::text, 'minute'::text, 'hour'::text, 'day'::text])))
);

CREATE TABLE throttle_queues (
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    id text COLLATE "C" NOT NULL,
    portal_id bigint NOT NULL,
    workflow_id text NOT NULL,
    action_id bigint NOT NULL,
    index text NOT NULL,
    job_id bigint,
    runner_at timestamp with time zone,
    paused_at timestamp with time zone,
    last_error text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    received_at timestamp with time zone NOT NULL DEFAULT now(),
    CONSTRAINT throttle_queues_pkey PRIMARY KEY (seq),
    CONSTRAINT throttle_queues_id UNIQUE (id)
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX throttle_queues_action ON throttle_queues USING btree (portal_id, action_id);

CREATE TABLE throttle_totals (
    queue bigint NOT NULL,
    completed bigint NOT NULL,
    CONSTRAINT throttle_totals_pkey PRIMARY KEY (queue),
    CONSTRAINT throttle_totals_queue_fkey FOREIGN KEY (queue) REFERENCES throttle_queues(seq) ON DELETE CASCADE
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);

CREATE TABLE throttle_windows (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    queue bigint NOT NULL,
    claim bigint NOT NULL,
    n integer NOT NULL,
    taken_at timestamp with time zone NOT NULL DEFAULT now(),
    ended_at timestamp with time zone NOT NULL,
    CONSTRAINT throttle_windows_pkey PRIMARY KEY (id),
    CONSTRAINT throttle_windows_n_check CHECK ((n > 0))
) WITH (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX throttle_windows_claim ON throttle_windows USING btree (claim);
CREATE INDEX throttle_windows_queue ON throttle_windows USING btree (queue, ended_at);

CREATE TABLE worker_details (
    worker_id text NOT NULL,
    name text NOT NULL,
    capabilities jsonb NOT NULL,
    conflict_at timestamp with time zone,
    conflict_from text,
    process text,
    registration bigint,
    CONSTRAINT worker_details_pkey PRIMARY KEY (worker_id)
);
CREATE INDEX worker_details_name ON worker_details USING btree (lower(name) COLLATE "C", worker_id);

CREATE TABLE worker_telemetry (
    worker_id text NOT NULL,
    build_id text NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT now(),
    type text NOT NULL,
    stage text,
    cpu_percent double precision,
    memory_mb double precision,
    disk_percent double precision,
    processes double precision,
    uptime_seconds double precision,
    cpu_sum double precision NOT NULL DEFAULT 0,
    cpu_count bigint NOT NULL DEFAULT 0,
    CONSTRAINT worker_telemetry_pkey PRIMARY KEY (worker_id),
    CONSTRAINT worker_telemetry_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES worker_details(worker_id) ON DELETE CASCADE
) WITH (fillfactor=50);

CREATE TABLE workers (
    id text NOT NULL,
    status text NOT NULL DEFAULT 'idle'::text,
    held integer NOT NULL DEFAULT 0,
    slots integer NOT NULL DEFAULT 1,
    platforms text[] NOT NULL DEFAULT '{}'::text[],
    registered_at timestamp with time zone NOT NULL DEFAULT now(),
    last_seen_at timestamp with time zone NOT NULL DEFAULT now(),
    completed integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    draining boolean NOT NULL DEFAULT false,
    critical boolean NOT NULL DEFAULT false,
    number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    used bigint NOT NULL DEFAULT 0,
    handed bigint NOT NULL DEFAULT 0,
    attempts text NOT NULL DEFAULT ''::text,
    rests_until timestamp with time zone NOT NULL DEFAULT '-infinity'::timestamp with time zone,
    quarantine text,
    quarantines smallint NOT NULL DEFAULT 0,
    instance text,
    poll_wait smallint NOT NULL DEFAULT 0,
    poll_closed_at timestamp with time zone,
    left_at timestamp with time zone,
    labels jsonb,
    registered_at_count bigint,
    suspect text,
    suspect_since timestamp with time zone,
    suspect_classes integer[],
    suspect_rests smallint NOT NULL DEFAULT 0,
    suspect_trials smallint NOT NULL DEFAULT 0,
    suspect_served boolean NOT NULL DEFAULT false,
    polled_at timestamp with time zone,
    poll_every smallint NOT NULL DEFAULT 0,
    leaving_at timestamp with time zone,
    CONSTRAINT workers_held_check CHECK ((held >= 0)),
    CONSTRAINT workers_slots_check CHECK ((slots >= 1)),
    CONSTRAINT workers_status_check CHECK ((status = ANY (ARRAY['idle'::text, 'building'::text, 'offline'::text])))
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=20000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.2, autovacuum_analyze_threshold=500);
CREATE INDEX workers_id ON workers USING btree (id);
CREATE INDEX workers_number ON workers USING btree (number);
CREATE TRIGGER forget_features AFTER UPDATE OF slots ON workers FOR EACH ROW WHEN (((new.labels IS NOT NULL) AND ((new.labels)::text ~~ '%"takt:%'::text) AND (new.registered_at_count IS DISTINCT FROM new.used))) EXECUTE FUNCTION forget_features();
CREATE TRIGGER notice_of_worker AFTER UPDATE OF status, quarantine, suspect ON workers FOR EACH ROW WHEN ((((new.status = 'offline'::text) <> (old.status = 'offline'::text)) OR ((((new.quarantine IS NULL) <> (old.quarantine IS NULL)) OR ((new.suspect IS NULL) <> (old.suspect IS NULL))) AND (new.status <> 'offline'::text)))) EXECUTE FUNCTION notice_of_worker();

CREATE SEQUENCE throttle_claims AS bigint START 1 INCREMENT 1;

CREATE VIEW sealed_values (kind text, id text, sealed bytea, key bytea) AS
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
    UNION ALL
    SELECT 'secret', name, sealed FROM secrets
) v;

CREATE OR REPLACE FUNCTION append_log_tail()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
DECLARE
    kept build_log_tails;
    missing integer;
BEGIN
    SELECT * INTO kept FROM build_log_tails WHERE build = NEW.seq ORDER BY begins LIMIT 1;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    SELECT kept.number - 1 - number INTO missing FROM build_logs WHERE build = NEW.seq AND number IS NOT NULL ORDER BY seq DESC LIMIT 1;
    IF missing > 0 THEN
        INSERT INTO build_logs (build, number, at, level, message, kind)
        VALUES (NEW.seq, kept.number - 1, kept.at, 'warn', '… ' || replace(to_char(missing, 'FM999,999,999'), ',', ' ')
            || ' lines left out: the log reached its limit of 64 MiB …', 'log_limit');
    END IF;
    INSERT INTO build_logs (build, number, at, level, message, by_worker, kind, facts)
    SELECT t.build, t.number + l.nr - 1, t.at, l.level, l.message, true, t.kind, t.facts
    FROM build_log_tails t, unnest(t.levels, t.messages) WITH ORDINALITY AS l(level, message, nr)
    WHERE t.build = NEW.seq ORDER BY t.begins, l.nr;
    DELETE FROM build_log_tails WHERE build = NEW.seq;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION count_attempts()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION forget_features()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    UPDATE workers SET labels = (SELECT jsonb_object_agg(key, value) FROM jsonb_each(labels) WHERE NOT starts_with(key, 'takt:'))
    WHERE number = NEW.number;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION insert_notices(event text, platforms text[], labels jsonb, data jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION keep_from_010()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF OLD.state = 'pending' AND (NEW.class = 0 OR EXISTS (SELECT FROM build_classes WHERE id = NEW.class AND require LIKE '%takt:%')) THEN
        RAISE EXCEPTION 'build % waits for a newer controller: this release of takt would run it without its parameters, secrets or limits', NEW.id;
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION keep_from_failing()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF NEW.state = 'failed' AND NEW.error_message LIKE 'No worker can take this build: it needs % with %takt:%' THEN
        RETURN NULL;
    ELSIF NEW.state = 'failed' AND NEW.log_lines = OLD.log_lines AND NEW.error_message = 'Build cannot be assigned: the database refuses it'
        AND (NEW.class = 0 OR EXISTS (SELECT FROM build_classes WHERE id = NEW.class AND require LIKE '%takt:%')) THEN
        RAISE EXCEPTION 'build % waits for a newer controller', NEW.id;
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION notice_of_build()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION notice_of_deployment()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    PERFORM insert_notices('deployment.' || CASE NEW.state WHEN 'done' THEN 'completed' ELSE NEW.state END, '{}', '{}',
        jsonb_strip_nulls(jsonb_build_object('id', NEW.id, 'error', NEW.error, 'created_at', NEW.created_at, 'finished_at', NEW.finished_at,
            'repositories', (SELECT count(*) FROM deployment_repos r WHERE r.deployment_id = NEW.id),
            'failed_repositories', (SELECT count(*) FROM deployment_repos r WHERE r.deployment_id = NEW.id AND r.step = 'failed'))));
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION notice_of_submit()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF EXISTS (SELECT FROM notice_subscriptions WHERE github) THEN
        PERFORM insert_notices('build.submitted', ARRAY[b.platform], NEW.labels, jsonb_build_object('id', b.id, 'platform', b.platform, 'labels', NEW.labels))
        FROM builds b WHERE b.seq = NEW.build;
    END IF;
    RETURN NULL;
END $function$;

CREATE OR REPLACE FUNCTION notice_of_worker()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
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
END $function$;

CREATE OR REPLACE FUNCTION queue_cost(who text)
 RETURNS bigint
 LANGUAGE plpgsql
 STABLE
AS $function$
DECLARE
    cost bigint;
BEGIN
    IF who <> '' THEN
        SELECT 65536 / greatest(weight, 1) INTO cost FROM access_keys WHERE name = who;
    END IF;
    RETURN coalesce(cost, 65536);
END $function$;

CREATE OR REPLACE FUNCTION queue_position(in_platform text, in_priority integer, who text, in_classes integer[])
 RETURNS bigint
 LANGUAGE plpgsql
AS $function$
DECLARE
    low    bigint := (10 - in_priority)::bigint << 55;
    high   bigint := (11 - in_priority)::bigint << 55;
    last   bigint;
    first  bigint;
    head   integer;
    own    integer;
    mine   integer[];
    others integer[];
    counts boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('takt queue ' || in_priority || in_platform || ' ' || who, 0));
    -- The first of all is most often the first of those that count.
    SELECT b.position, b.class INTO first, head
    FROM builds b WHERE b.state = 'pending' AND b.position >= low AND b.position < high ORDER BY b.position, b.seq LIMIT 1;
    counts := head = ANY (in_classes);
    IF first IS NOT NULL AND counts IS NOT TRUE THEN
        FOREACH own IN ARRAY in_classes LOOP -- what waits apart from all of them
            SELECT coalesce(k.apart, '{}') INTO mine FROM build_classes k WHERE k.id = own;
            others := CASE WHEN others IS NULL THEN mine ELSE ARRAY(SELECT unnest(others) INTERSECT SELECT unnest(mine)) END;
            EXIT WHEN others = '{}';
        END LOOP;
        SELECT k.platform = in_platform AND k.served AND k.id <> ALL (others) INTO counts FROM build_classes k WHERE k.id = head;
    END IF;
    IF first IS NOT NULL AND counts IS NOT TRUE THEN
        -- The first position of each class of the platform, one look-up for each class.
        WITH RECURSIVE c AS (
            (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 ORDER BY b.class LIMIT 1)
            UNION ALL
            SELECT (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class > c.class ORDER BY b.class LIMIT 1) FROM c WHERE c.class IS NOT NULL
        )
        SELECT coalesce(
            min(f.position) FILTER (WHERE k.id = ANY (in_classes) OR k.served AND k.id <> ALL (others)),
            min(f.position) FILTER (WHERE k.served), min(f.position)
        ) INTO first
        FROM c JOIN build_classes k ON k.id = c.class AND k.platform = in_platform CROSS JOIN LATERAL (
            SELECT b.position FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class = c.class AND b.position >= low AND b.position < high
            ORDER BY b.class, b.position LIMIT 1
        ) f;
    END IF;
    IF first IS NULL THEN
        RETURN low + 65536 * (SELECT last_value + 1 FROM builds_seq_seq);
    END IF;
    SELECT position INTO last FROM builds
    WHERE state = 'pending' AND attempt >= 0 AND coalesce(submitter, '') = who AND platform = in_platform AND position >= low AND position < high
    ORDER BY position DESC LIMIT 1;
    IF last IS NULL THEN
        RETURN first;
    END IF;
    RETURN greatest(first, last + queue_cost(who));
END $function$;

CREATE OR REPLACE FUNCTION queue_positions(platforms text[], priorities integer[], submitters text[], classes integer[])
 RETURNS bigint[]
 LANGUAGE plpgsql
AS $function$
DECLARE
    positions bigint[];
    together  record;
    next      bigint;
    cost      bigint;
    i         bigint;
BEGIN
    IF cardinality(platforms) = 1 THEN
        RETURN ARRAY[queue_position(platforms[1], priorities[1], submitters[1], classes)];
    END IF;
    FOR together IN
        SELECT s.submitter, s.platform, s.priority, array_agg(s.class) AS classes, array_agg(s.nr ORDER BY s.nr) AS places
        FROM unnest(submitters, platforms, priorities, classes) WITH ORDINALITY AS s(submitter, platform, priority, class, nr) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    LOOP
        next := queue_position(together.platform, together.priority, together.submitter, together.classes);
        cost := queue_cost(together.submitter);
        FOREACH i IN ARRAY together.places LOOP
            positions[i] := next;
            next := next + cost;
        END LOOP;
    END LOOP;
    RETURN positions;
END $function$;

CREATE OR REPLACE FUNCTION refuse_retry_without_inputs()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    IF EXISTS (SELECT FROM build_inputs WHERE root = NEW.retry_root) THEN
        RAISE EXCEPTION 'the build has parameters, secrets or limits, which this release of takt would not copy: retry it at a newer controller'
            USING ERRCODE = 'query_canceled';
    END IF;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION return_class()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.class := coalesce((SELECT home_class FROM build_inputs WHERE build = NEW.seq), NEW.class);
    UPDATE build_inputs SET home_class = NULL, due_at = NULL WHERE build = NEW.seq;
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION set_build_class()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.class := (SELECT id FROM build_classes WHERE platform = NEW.platform AND require = '');
    RETURN NEW;
END $function$;

CREATE OR REPLACE FUNCTION set_build_position()
 RETURNS trigger
 LANGUAGE plpgsql
AS $function$
BEGIN
    NEW.position := CASE WHEN NEW.state = 'pending' THEN queue_position(NEW.platform, NEW.priority, coalesce(NEW.submitter, ''), ARRAY[NEW.class])
        ELSE ((10 - NEW.priority)::bigint << 55) + 65536 * NEW.seq END;
    RETURN NEW;
END $function$;
