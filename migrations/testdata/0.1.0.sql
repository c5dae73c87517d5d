CREATE TYPE public.river_job_state AS ENUM (
    'available',
    'cancelled',
    'completed',
    'discarded',
    'pending',
    'retryable',
    'running',
    'scheduled'
);
CREATE FUNCTION public.river_job_state_in_bitmask(bitmask bit, state public.river_job_state) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE state
        WHEN 'available' THEN get_bit(bitmask, 7)
        WHEN 'cancelled' THEN get_bit(bitmask, 6)
        WHEN 'completed' THEN get_bit(bitmask, 5)
        WHEN 'discarded' THEN get_bit(bitmask, 4)
        WHEN 'pending'   THEN get_bit(bitmask, 3)
        WHEN 'retryable' THEN get_bit(bitmask, 2)
        WHEN 'running'   THEN get_bit(bitmask, 1)
        WHEN 'scheduled' THEN get_bit(bitmask, 0)
        ELSE 0
    END = 1;
$$;
CREATE TABLE public.action_executions (
    queue bigint NOT NULL,
    portal_id bigint NOT NULL,
    callback_id text NOT NULL COLLATE pg_catalog."C",
    state text DEFAULT 'waiting'::text NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    claim bigint DEFAULT 0 NOT NULL,
    failures integer DEFAULT 0 NOT NULL,
    giving_up boolean DEFAULT false NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    last_error text,
    CONSTRAINT action_executions_finished CHECK (((state = 'waiting'::text) = (finished_at IS NULL))),
    CONSTRAINT action_executions_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'completed'::text, 'given_up'::text, 'expired'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');
CREATE TABLE public.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    reason text NOT NULL,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL,
    outcome text
);
ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.build_days (
    day date NOT NULL,
    completed bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    cancelled bigint DEFAULT 0 NOT NULL,
    build_ms bigint DEFAULT 0 NOT NULL
);
CREATE TABLE public.build_files (
    build bigint NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    size bigint NOT NULL,
    sha256 bytea NOT NULL,
    location text DEFAULT 'local'::text NOT NULL,
    object text,
    copy_due timestamp with time zone,
    CONSTRAINT build_files_kind_check CHECK ((kind = ANY (ARRAY['source'::text, 'certs'::text, 'result'::text]))),
    CONSTRAINT build_files_location CHECK ((location = ANY (ARRAY['local'::text, 's3'::text, 'both'::text]))),
    CONSTRAINT build_files_object_known CHECK (((object IS NOT NULL) OR (location = 'local'::text))),
    CONSTRAINT build_files_sha256_check CHECK ((length(sha256) = 32)),
    CONSTRAINT build_files_size_check CHECK ((size >= 0))
);
CREATE TABLE public.build_ids (
    id text NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.build_labels (
    build bigint NOT NULL,
    labels jsonb NOT NULL
);
CREATE TABLE public.build_logs (
    build bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    level text DEFAULT 'info'::text NOT NULL,
    message text NOT NULL,
    by_worker boolean DEFAULT false NOT NULL,
    CONSTRAINT build_logs_level_check CHECK ((level = ANY (ARRAY['info'::text, 'warn'::text, 'error'::text])))
)
WITH (autovacuum_vacuum_insert_scale_factor='0.5');
ALTER TABLE public.build_logs ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.build_logs_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.builds (
    seq bigint NOT NULL,
    id text NOT NULL,
    platform text NOT NULL,
    state text DEFAULT 'pending'::text NOT NULL,
    priority smallint DEFAULT 0 NOT NULL,
    "position" bigint GENERATED ALWAYS AS (((((10 - priority))::bigint << 55) | seq)) STORED,
    worker_id text,
    last_worker_id text,
    attempt integer DEFAULT 0 NOT NULL,
    lost integer DEFAULT 0 NOT NULL,
    has_certs boolean DEFAULT false NOT NULL,
    token_hash bytea NOT NULL,
    submitted_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    last_seen_at timestamp with time zone,
    completed_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    error_message text,
    handed bigint DEFAULT 0 NOT NULL,
    log_bytes bigint DEFAULT 0 NOT NULL,
    retry_root bigint,
    CONSTRAINT builds_holder CHECK (((state <> ALL (ARRAY['assigned'::text, 'building'::text])) OR (worker_id IS NOT NULL))),
    CONSTRAINT builds_platform_check CHECK ((platform = ANY (ARRAY['ios'::text, 'android'::text]))),
    CONSTRAINT builds_priority_check CHECK (((priority >= '-10'::integer) AND (priority <= 10))),
    CONSTRAINT builds_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'assigned'::text, 'building'::text, 'completed'::text, 'failed'::text, 'cancelled'::text])))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='10000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.05');
ALTER TABLE public.builds ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.builds_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.deployment_repos (
    deployment_id text NOT NULL,
    name text NOT NULL,
    target text NOT NULL,
    source jsonb NOT NULL,
    step text DEFAULT 'planned'::text NOT NULL,
    run bigint DEFAULT 0 NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    target_id bigint,
    target_url text,
    refs integer DEFAULT 0 NOT NULL,
    error text,
    warning text,
    cancelled boolean DEFAULT false NOT NULL,
    made_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT deployment_repos_check CHECK (((step = ANY (ARRAY['done'::text, 'failed'::text, 'skipped'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT deployment_repos_step_check CHECK ((step = ANY (ARRAY['planned'::text, 'creating'::text, 'pushing'::text, 'verifying'::text, 'done'::text, 'failed'::text, 'skipped'::text])))
)
WITH (fillfactor='70');
CREATE TABLE public.deployments (
    id text NOT NULL,
    request jsonb NOT NULL,
    state text DEFAULT 'planning'::text NOT NULL,
    run bigint DEFAULT 0 NOT NULL,
    owner text,
    leased_until timestamp with time zone,
    credential bytea,
    credential_id bytea NOT NULL,
    filtered integer DEFAULT 0 NOT NULL,
    error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    planned_at timestamp with time zone,
    finished_at timestamp with time zone,
    CONSTRAINT deployments_state_check CHECK ((state = ANY (ARRAY['planning'::text, 'running'::text, 'paused'::text, 'done'::text, 'cancelled'::text, 'failed'::text])))
);
CREATE TABLE public.diagnostic_reports (
    seq bigint NOT NULL,
    id text NOT NULL,
    worker_id text NOT NULL,
    status text NOT NULL,
    run_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    duration_ms bigint NOT NULL,
    auto_fixed boolean NOT NULL,
    checks json NOT NULL,
    finding text DEFAULT ''::text NOT NULL,
    name text NOT NULL,
    location text NOT NULL,
    object text,
    CONSTRAINT diagnostic_reports_status_check CHECK ((status = ANY (ARRAY['healthy'::text, 'warning'::text, 'critical'::text])))
);
ALTER TABLE public.diagnostic_reports ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.diagnostic_reports_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.idempotency_keys (
    key bytea NOT NULL,
    content bytea NOT NULL,
    build text NOT NULL,
    reply bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT idempotency_keys_content_check CHECK ((length(content) = 32)),
    CONSTRAINT idempotency_keys_key_check CHECK ((length(key) = 32))
);
CREATE TABLE public.key_check (
    only_row boolean DEFAULT true NOT NULL,
    sealed bytea NOT NULL,
    CONSTRAINT key_check_only_row_check CHECK (only_row)
);
CREATE TABLE public.oauth_tokens (
    portal_id bigint NOT NULL,
    access_token bytea NOT NULL,
    refresh_token bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    scopes text DEFAULT ''::text NOT NULL,
    version bigint DEFAULT 1 NOT NULL,
    refresh_claim bigint,
    refresh_until timestamp with time zone,
    last_error text,
    installed_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.river_job (
    id bigint NOT NULL,
    state public.river_job_state DEFAULT 'available'::public.river_job_state NOT NULL,
    attempt smallint DEFAULT 0 NOT NULL,
    max_attempts smallint DEFAULT 25 NOT NULL,
    attempted_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    finalized_at timestamp with time zone,
    scheduled_at timestamp with time zone DEFAULT now() NOT NULL,
    priority smallint DEFAULT 1 NOT NULL,
    args jsonb NOT NULL,
    attempted_by text[],
    errors jsonb[],
    kind text NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    queue text DEFAULT 'default'::text NOT NULL,
    tags character varying(255)[] DEFAULT '{}'::character varying[] NOT NULL,
    unique_key bytea,
    unique_states bit(8),
    CONSTRAINT finalized_or_finalized_at_null CHECK ((((finalized_at IS NULL) AND (state <> ALL (ARRAY['cancelled'::public.river_job_state, 'completed'::public.river_job_state, 'discarded'::public.river_job_state]))) OR ((finalized_at IS NOT NULL) AND (state = ANY (ARRAY['cancelled'::public.river_job_state, 'completed'::public.river_job_state, 'discarded'::public.river_job_state]))))),
    CONSTRAINT kind_length CHECK (((char_length(kind) > 0) AND (char_length(kind) < 128))),
    CONSTRAINT max_attempts_is_positive CHECK ((max_attempts > 0)),
    CONSTRAINT priority_in_range CHECK (((priority >= 1) AND (priority <= 4))),
    CONSTRAINT queue_length CHECK (((char_length(queue) > 0) AND (char_length(queue) < 128)))
);
CREATE SEQUENCE public.river_job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.river_job_id_seq OWNED BY public.river_job.id;
CREATE UNLOGGED TABLE public.river_leader (
    elected_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    leader_id text NOT NULL,
    name text DEFAULT 'default'::text NOT NULL,
    CONSTRAINT leader_id_length CHECK (((char_length(leader_id) > 0) AND (char_length(leader_id) < 128))),
    CONSTRAINT name_length CHECK ((name = 'default'::text))
);
CREATE TABLE public.river_migration (
    line text NOT NULL,
    version bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT line_length CHECK (((char_length(line) > 0) AND (char_length(line) < 128))),
    CONSTRAINT version_gte_1 CHECK ((version >= 1))
);
CREATE TABLE public.river_notification (
    id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    payload text NOT NULL,
    topic text NOT NULL,
    CONSTRAINT topic_length CHECK (((length(topic) > 0) AND (length(topic) < 128)))
);
CREATE SEQUENCE public.river_notification_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.river_notification_id_seq OWNED BY public.river_notification.id;
CREATE TABLE public.river_queue (
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    paused_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT CURRENT_TIMESTAMP NOT NULL
);
CREATE TABLE public.rollup (
    only_row boolean DEFAULT true NOT NULL,
    up_to timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    cpu_sum double precision DEFAULT 0 NOT NULL,
    cpu_count bigint DEFAULT 0 NOT NULL,
    CONSTRAINT rollup_only_row_check CHECK (only_row)
);
CREATE VIEW public.sealed_values AS
 SELECT v.kind,
    v.id,
    v.sealed,
    substr(v.sealed, 5, 8) AS key
   FROM ( SELECT 'forge credential'::text AS kind,
            deployments.id,
            deployments.credential AS sealed
           FROM public.deployments
          WHERE (deployments.credential IS NOT NULL)
        UNION ALL
         SELECT 'HubSpot access token'::text,
            (oauth_tokens.portal_id)::text AS portal_id,
            oauth_tokens.access_token
           FROM public.oauth_tokens
        UNION ALL
         SELECT 'HubSpot refresh token'::text,
            (oauth_tokens.portal_id)::text AS portal_id,
            oauth_tokens.refresh_token
           FROM public.oauth_tokens
        UNION ALL
         SELECT 'key check'::text,
            'database'::text,
            key_check.sealed
           FROM public.key_check) v;
CREATE TABLE public.settings (
    key text NOT NULL,
    value jsonb NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.takt_migrations (
    version bigint NOT NULL,
    dirty boolean NOT NULL
);
CREATE SEQUENCE public.throttle_claims
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE public.throttle_configs (
    portal_id bigint NOT NULL,
    action_id bigint NOT NULL,
    max_throughput integer NOT NULL,
    time_period integer NOT NULL,
    time_unit text NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    deleted_at timestamp with time zone,
    CONSTRAINT throttle_configs_max_throughput_check CHECK ((max_throughput > 0)),
    CONSTRAINT throttle_configs_time_period_check CHECK ((time_period > 0)),
    CONSTRAINT throttle_configs_time_unit_check CHECK ((time_unit = ANY (ARRAY['second'::text, 'minute'::text, 'hour'::text, 'day'::text])))
);
CREATE TABLE public.throttle_queues (
    seq bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    portal_id bigint NOT NULL,
    workflow_id text NOT NULL,
    action_id bigint NOT NULL,
    index text NOT NULL,
    job_id bigint,
    runner_at timestamp with time zone,
    paused_at timestamp with time zone,
    last_error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE public.throttle_queues ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.throttle_queues_seq_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.throttle_windows (
    id bigint NOT NULL,
    queue bigint NOT NULL,
    claim bigint NOT NULL,
    n integer NOT NULL,
    taken_at timestamp with time zone DEFAULT now() NOT NULL,
    ended_at timestamp with time zone NOT NULL,
    CONSTRAINT throttle_windows_n_check CHECK ((n > 0))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0');
ALTER TABLE public.throttle_windows ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.throttle_windows_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.worker_details (
    worker_id text NOT NULL,
    name text NOT NULL,
    capabilities jsonb NOT NULL
);
CREATE TABLE public.worker_telemetry (
    worker_id text NOT NULL,
    build_id text NOT NULL,
    at timestamp with time zone DEFAULT now() NOT NULL,
    type text NOT NULL,
    stage text,
    cpu_percent double precision,
    memory_mb double precision,
    disk_percent double precision,
    processes double precision,
    uptime_seconds double precision,
    cpu_sum double precision DEFAULT 0 NOT NULL,
    cpu_count bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE public.workers (
    id text NOT NULL,
    status text DEFAULT 'idle'::text NOT NULL,
    held integer DEFAULT 0 NOT NULL,
    slots integer DEFAULT 1 NOT NULL,
    platforms text[] DEFAULT '{}'::text[] NOT NULL,
    registered_at timestamp with time zone DEFAULT now() NOT NULL,
    last_seen_at timestamp with time zone DEFAULT now() NOT NULL,
    completed integer DEFAULT 0 NOT NULL,
    failed integer DEFAULT 0 NOT NULL,
    draining boolean DEFAULT false NOT NULL,
    critical boolean DEFAULT false NOT NULL,
    number bigint NOT NULL,
    used bigint DEFAULT 0 NOT NULL,
    handed bigint DEFAULT 0 NOT NULL,
    CONSTRAINT workers_held_check CHECK ((held >= 0)),
    CONSTRAINT workers_slots_check CHECK ((slots >= 1)),
    CONSTRAINT workers_status_check CHECK ((status = ANY (ARRAY['idle'::text, 'building'::text, 'offline'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.2', autovacuum_analyze_threshold='500');
ALTER TABLE public.workers ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.workers_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    MAXVALUE 4294967295
    CACHE 1
);
ALTER TABLE ONLY public.river_job ALTER COLUMN id SET DEFAULT nextval('public.river_job_id_seq'::regclass);
ALTER TABLE ONLY public.river_notification ALTER COLUMN id SET DEFAULT nextval('public.river_notification_id_seq'::regclass);
INSERT INTO public.action_executions VALUES
	(1, 62515, 'cb-2', 'waiting', '2026-11-23 16:20:19.764537+00', 0, 0, false, '2026-11-23 16:20:19.764537+00', '2126-01-01 00:00:00+00', NULL, NULL),
	(1, 62515, 'cb-3', 'waiting', '2026-11-23 16:20:19.785837+00', 0, 0, false, '2026-11-23 16:20:19.785837+00', '2126-01-01 00:00:00+00', NULL, NULL),
	(1, 62515, 'cb-1', 'completed', '2026-11-23 16:20:19.715513+00', 1, 0, false, '2026-11-23 16:20:19.715513+00', '2126-01-01 00:00:00+00', '2026-11-23 16:20:19.715513+00', NULL);
INSERT INTO public.audit OVERRIDING SYSTEM VALUE VALUES
	(1, '2026-11-23 16:20:19.682069+00', 'api@127.0.0.1', 'set rate', '62515/7', '', '{"change": {"action_id": 7, "portal_id": 62515, "time_unit": "hour", "updated_at": "0001-01-01T00:00:00.000Z", "time_period": 1, "max_throughput": 2}, "request_id": "R6RQ3ZCI4M2MXME26VWEVDRZAF"}', 'done');
INSERT INTO public.build_days VALUES
	('2026-11-23', 1, 1, 0, 58);
INSERT INTO public.build_files VALUES
	(1, 'source', 'builds/GaK6oUkEJ7DjtFANIRQMJ/source.zip', 158, '\xfa562a5f1e208f5c9e43bd0869bcfab2354c69347c38d4c5f2738a5347e6da1e', 'local', NULL, NULL),
	(2, 'source', 'builds/TgsLq1miQsB8ToZ9i1Chi/source.zip', 158, '\xfa562a5f1e208f5c9e43bd0869bcfab2354c69347c38d4c5f2738a5347e6da1e', 'local', NULL, NULL),
	(1, 'result', 'builds/GaK6oUkEJ7DjtFANIRQMJ/result.ipa', 7, '\x5656fafa00d4f294bcb606cf4f7d4fa877390e46f583e8b3c8744ace104a31d1', 'local', NULL, NULL),
	(3, 'source', 'builds/GndwZlIdmYTwMg6ThepPW/source.zip', 158, '\xfa562a5f1e208f5c9e43bd0869bcfab2354c69347c38d4c5f2738a5347e6da1e', 'local', NULL, NULL),
	(4, 'source', 'builds/UozDfl6_u_jZivkpV9BgV/source.zip', 158, '\xfa562a5f1e208f5c9e43bd0869bcfab2354c69347c38d4c5f2738a5347e6da1e', 'local', NULL, NULL);
INSERT INTO public.build_ids VALUES
	('GaK6oUkEJ7DjtFANIRQMJ', 1),
	('TgsLq1miQsB8ToZ9i1Chi', 2),
	('GndwZlIdmYTwMg6ThepPW', 3),
	('UozDfl6_u_jZivkpV9BgV', 4);
INSERT INTO public.build_labels VALUES
	(1, '{"app": "shop"}'),
	(4, '{"app": "shop"}');
INSERT INTO public.build_logs OVERRIDING SYSTEM VALUE VALUES
	(1, 1, '2026-11-23 16:20:19.19994+00', 'info', 'Build submitted', false),
	(2, 2, '2026-11-23 16:20:19.226594+00', 'info', 'Build submitted', false),
	(1, 3, '2026-11-23 16:20:19.262337+00', 'info', 'Assigned to worker ZMxhHce1bCgxN0u7ypVWP', false),
	(1, 4, '2026-11-23 16:20:19.300451+00', 'info', '[takt] attempt 1 begins on first', true),
	(1, 5, '2026-11-23 16:20:19.300451+00', 'info', '[takt] source unpacked: 1 files, 6 bytes', true),
	(1, 6, '2026-11-23 16:20:19.300451+00', 'info', 'built hello', true),
	(1, 7, '2026-11-23 16:20:19.300451+00', 'info', 'line two', true),
	(1, 8, '2026-11-23 16:20:19.30333+00', 'info', 'Build completed successfully', false),
	(2, 9, '2026-11-23 16:20:19.317903+00', 'info', 'Assigned to worker ZMxhHce1bCgxN0u7ypVWP', false),
	(2, 10, '2026-11-23 16:20:19.333743+00', 'info', '[takt] attempt 1 begins on first', true),
	(2, 11, '2026-11-23 16:20:19.333743+00', 'info', '[takt] source unpacked: 1 files, 6 bytes', true),
	(2, 12, '2026-11-23 16:20:19.333743+00', 'info', 'built hello', true),
	(2, 13, '2026-11-23 16:20:19.333743+00', 'info', 'line two', true),
	(2, 14, '2026-11-23 16:20:19.335707+00', 'error', 'Build failed: build command failed: exit code 3', false),
	(3, 15, '2026-11-23 16:20:19.54648+00', 'info', 'Build submitted', false),
	(4, 16, '2026-11-23 16:20:19.568094+00', 'info', 'Build submitted', false),
	(3, 17, '2026-11-23 16:20:19.583045+00', 'info', 'Assigned to worker mac-mini-3', false),
	(3, 18, '2026-11-23 16:20:19.611042+00', 'info', 'compiling', true),
	(3, 19, '2026-11-23 16:20:19.611042+00', 'error', 'boom', true),
	(3, 20, '2026-11-23 16:20:19.629041+00', 'info', '[VM] Stage: building | CPU: 142.5% | Memory: 2048 MB | Disk: 40% | Processes: 213 | Uptime: 61 s', true);
INSERT INTO public.builds OVERRIDING SYSTEM VALUE VALUES
	(1, 'GaK6oUkEJ7DjtFANIRQMJ', 'ios', 'completed', 2, DEFAULT, 'ZMxhHce1bCgxN0u7ypVWP', NULL, 1, 0, false, '\x62da6fd477b958aacbef5a77595a1c6c791065cccee16225b930a30c0a739dd0', '2026-11-23 16:20:19.19994+00', '2026-11-23 16:20:19.262337+00', '2026-11-23 16:20:19.30333+00', '2026-11-23 16:20:19.30333+00', '2026-11-23 16:20:19.30333+00', NULL, 1025, 283, NULL),
	(2, 'TgsLq1miQsB8ToZ9i1Chi', 'ios', 'failed', 0, DEFAULT, 'ZMxhHce1bCgxN0u7ypVWP', NULL, 1, 0, false, '\xeed683cc382e143c1d5593d5fa99f69515acea4c81c9cb8ff3c5c7e5a930fd6a', '2026-11-23 16:20:19.226594+00', '2026-11-23 16:20:19.317903+00', '2026-11-23 16:20:19.335707+00', '2026-11-23 16:20:19.335707+00', '2026-11-23 16:20:19.335707+00', 'build command failed: exit code 3', 2049, 283, NULL),
	(4, 'UozDfl6_u_jZivkpV9BgV', 'android', 'pending', 0, DEFAULT, NULL, NULL, 0, 0, false, '\xaf96dff4981092c94c2f288365be5f6c097cb4a6ef0bff8ff20b60adb3c948f6', '2026-11-23 16:20:19.568094+00', NULL, NULL, NULL, '2026-11-23 16:20:19.568094+00', NULL, 0, 0, NULL),
	(3, 'GndwZlIdmYTwMg6ThepPW', 'ios', 'building', 0, DEFAULT, 'mac-mini-3', NULL, 1, 0, false, '\x44bd143bc80e5718f638e10df21e970e83d157fb05de3ffc6ec08cff76980d77', '2026-11-23 16:20:19.54648+00', '2026-11-23 16:20:19.583045+00', '2026-11-23 16:20:19.629041+00', NULL, '2026-11-23 16:20:19.611042+00', NULL, 1025, 253, NULL);
INSERT INTO public.deployment_repos VALUES
	('2bvk3b3cdwfslmm3', 'api-a', 'api-a', '{"name": "api-a"}', 'done', 1, 1, 11, 'https://example.com/ghost2/api-a', 3, NULL, NULL, false, '2026-11-23 16:20:19.807382+00', '2026-11-23 16:20:19.807382+00', '2026-11-23 16:20:19.807382+00', '2026-11-23 16:21:51.176831+00'),
	('2bvk3b3cdwfslmm3', 'api-b', 'api-b', '{"name": "api-b"}', 'failed', 1, 2, NULL, NULL, 0, 'pushing failed', NULL, false, NULL, '2026-11-23 16:20:19.807382+00', '2026-11-23 16:20:19.807382+00', '2026-11-23 16:21:51.19054+00');
INSERT INTO public.deployments VALUES
	('2bvk3b3cdwfslmm3', '{"forks": "include", "include": ["api-*"], "archived": "include", "source_org": "ghost", "target_org": "ghost2", "visibility": "keep", "concurrency": 8, "name_template": "{name}"}', 'failed', 1, NULL, NULL, NULL, '\x121adbed5df35a343ab15ce19a689f7ec960e7198841169c9623ba4e28191315', 0, 'Listing the repositories of ghost failed: the forge does not answer', '2026-11-23 16:20:19.807382+00', NULL, '2026-11-23 16:20:30.439776+00');
INSERT INTO public.diagnostic_reports OVERRIDING SYSTEM VALUE VALUES
	(1, 'f49aefd9-9dc9-46ce-a446-e8867a467488', 'ZMxhHce1bCgxN0u7ypVWP', 'healthy', '2026-11-23 16:20:19.256+00', '2026-11-23 16:20:19.267404+00', 3, false, '[{"name":"runner","status":"pass","message":"builds can be run","duration_ms":2,"auto_fixed":false},{"name":"limits","status":"pass","message":"limits of builds can be held","duration_ms":0,"auto_fixed":false},{"name":"memory","status":"pass","message":"878 MiB of 24 GiB used","duration_ms":0,"auto_fixed":false},{"name":"disk","status":"pass","message":"75 GiB free","duration_ms":0,"auto_fixed":false}]', '', 'diagnostics/ZMxhHce1bCgxN0u7ypVWP/2026-11-23T16-20-19.266865268Z.json', 'local', NULL),
	(2, '2c297cd4-4d7c-4c6e-b72e-27aa42d4815e', 'mac-mini-3', 'healthy', '2025-11-24 16:00:00+00', '2026-11-23 16:20:19.530428+00', 1200, false, '[{"name":"disk","status":"pass","message":"120 GB free","duration_ms":12,"auto_fixed":false}]', '', 'diagnostics/mac-mini-3/2026-11-23T16-20-19.529716878Z.json', 'local', NULL);
INSERT INTO public.idempotency_keys VALUES
	('\xba4cef9bd7b8553939e0b9baeade880055c535c60c35d21b76d7e42471d4393c', '\x6e32d885c2ac3aee0dfc86839c5df99963beec2b538962d81cba2159e85a14e5', 'GaK6oUkEJ7DjtFANIRQMJ', '\xa7f493e0c8f3758a68d46927c4d312438c19870ae7f7d17dc12ce62d37167d9ce9fa98abce71e3c854c9c9f6e8ce844ed7985dfaa7fb873beb56c500ea7b58ddb8b76e0dc2274677eb391e54331782744b4c3c1f5d23c44377dfe769452bccb24ed55fb3160ab94fa6a7254d0b483c10c129b74c6aec8892789ac2a7eabdd97897d470faee042a56dc2c00e4ce9745e7e25874fa76ab1fbff54916ad4a7e3d116cab4383d7fb17bd229c8945a455733fce61434e8371a9dbeb29d9f31c7d09e1b562e24a57c6d646c4e6eb9ad606', '2026-11-23 16:20:19.19994+00'),
	('\xa7d608bf0e220c8356c7341b4fd2eff4bc61b6df2c5b91fc952199e4bc41139c', '\x197a12cca205af3da2f6a1cbe895bc418a67dd98c3ea17c738c6d9c7451b0854', 'TgsLq1miQsB8ToZ9i1Chi', '\xc687c009b3477e562170f98464d8b7300ac6c1ea79b0820c30f8691c02e1652540172dd7f505f6bb4d68572557415f5d48451b6d23fc4299192574e5eeef9a40ecb7a5fdd395e0713140b8afc792b12b8c64394f7ead139bfe695b89fc346648db9eb101a0444931a414842b1c28f284feb65218680937e1908c3c550ba748ebe61df6a028840972155d7feeac00e2ff69fa76e1d0ce1a96c23453313d51574c6a824c9261de0f94e3d7a3716a0f2613bf9ae5ee1ccd65fa2383e7ab33394f3e870e3e0a70f4304060fe1a06af51', '2026-11-23 16:20:19.226594+00'),
	('\xfa6b5309dd2f2b8db89c4246e158d259af329c7d9149096b1811d47b435fa3de', '\x197a12cca205af3da2f6a1cbe895bc418a67dd98c3ea17c738c6d9c7451b0854', 'GndwZlIdmYTwMg6ThepPW', '\xf5fde48b3053c1fb8e3d68aba4d4cd3b9f1b2b22f95c8e64270d9d1221f516c93cd30fca21435e941ae0839a6f05e1907993eb51f12f06166ac2987eb93c696b4c9227737f900118f62533573a687193252aa59968704de55dacf6760861dae852dd2f4b4484fc812a3824699c3162e4184e2d1cd7051774ce26d10bfc7a0cd778cda457f7326797aec29772faa7f9767e117cfe6fcbe377d272b716185ab3cfce932607bfd3c82556787c353a02f52a3926969c8ae23a31dc5dca54a336ee523dfbb98af30ae62bbf4509bff0b8', '2026-11-23 16:20:19.54648+00'),
	('\x78030c1c3998367d459dfaa72a41cf94bb0bf9046c0696a08d300e2492de692f', '\x574a731a005d5568547872f658d47bc4d0b31ae1e6e26cda9383f887d7b59b14', 'UozDfl6_u_jZivkpV9BgV', '\x43550773ff03962f51be4746868bcb1f18973e9c4383fc7896007c26aa7a743ca5cc90fcf82923ad41fdbb84080dc68c4f70058599c2f12e11442a38d8ed7f4dd6fa38c1c4018aaf0565dad463062542b8c9bc2dfda1fc9f4c53c3496c1e3c694a860819082391c881c0fd51975abf526f4768e2e184f34c2eb6936eff52ef9b35ea613bfce068a58e10d6671f129c27dd1e597aa77cbebe093f268655e60e80ede4da82aec7798c32cea34656de486154c21cfde91ffcbad9f20fc977b9a8d9728e7bad83aced526897d5390691f76a3256', '2026-11-23 16:20:19.568094+00');
INSERT INTO public.key_check VALUES
	(true, '\x746b7401a37ad56520f4ad9eb6ac1375d1984c57757a061edf17a0c8bbbf4fc8ad83ccf9d0f2c8b96b5dfa31ab6d8d6194ff11247264cd3c4b39ff5b');
INSERT INTO public.oauth_tokens VALUES
	(62515, '\x01', '\x02', '2026-11-23 17:00:00+00', 'automation oauth', 1, NULL, NULL, NULL, '2026-11-23 16:21:51.200081+00', '2026-11-23 16:21:51.200081+00');
INSERT INTO public.river_job VALUES
	(3, 'completed', 1, 25, '2026-11-23 16:20:20.165729+00', '2026-11-23 16:20:19.954147+00', '2026-11-23 16:20:20.175+00', '2026-11-23 16:20:19.953704+00', 1, '{}', '{controller_1}', NULL, 'throttle_forget', '{"periodic": true, "river:periodic_job_id": "throttle_forget"}', 'maintenance', '{}', NULL, NULL),
	(2, 'completed', 1, 25, '2026-11-23 16:20:20.165729+00', '2026-11-23 16:20:19.954147+00', '2026-11-23 16:20:20.178041+00', '2026-11-23 16:20:19.953704+00', 1, '{}', '{controller_1}', NULL, 'throttle_clean', '{"periodic": true, "river:periodic_job_id": "throttle_clean"}', 'maintenance', '{}', NULL, NULL),
	(1, 'available', 0, 1000, '2026-11-23 16:20:20.145492+00', '2026-11-23 16:20:19.718074+00', NULL, '2026-11-23 16:21:20.147573+00', 1, '{"queue": "queue:62515:3:7:0", "portal_id": 62515}', '{controller_1}', NULL, 'throttle', '{"snoozes": 1}', 'default', '{}', '\x681a355e2dae2ed512ba84970f2cee9c54c4fb29717acd8aa9716b46d3c31031', B'11110001');
INSERT INTO public.river_migration VALUES
	('main', 1, '2026-11-23 16:20:18.528185+00'),
	('main', 2, '2026-11-23 16:20:18.543139+00'),
	('main', 3, '2026-11-23 16:20:18.579101+00'),
	('main', 4, '2026-11-23 16:20:18.586099+00'),
	('main', 5, '2026-11-23 16:20:18.599128+00'),
	('main', 6, '2026-11-23 16:20:18.647261+00'),
	('main', 7, '2026-11-23 16:20:18.652765+00'),
	('main', 8, '2026-11-23 16:20:18.675358+00');
INSERT INTO public.river_notification VALUES
	(1, '2026-11-23 16:21:51.237321+00', 'none', 'none');
INSERT INTO public.river_queue VALUES
	('default', '2026-11-23 16:20:19.123697+00', '{}', NULL, '2026-11-23 16:20:19.123697+00'),
	('maintenance', '2026-11-23 16:20:19.128137+00', '{}', NULL, '2026-11-23 16:20:19.128137+00');
INSERT INTO public.rollup VALUES
	(true, '2026-11-23 16:20:20+00', 0, 0);
INSERT INTO public.settings VALUES
	('installation', '"5b5cbb42-f1ef-4bf4-9c40-0fbbee2bf5cb"', '2026-11-23 16:20:18.829741+00'),
	('chores', '{}', '2026-11-23 16:21:19.107278+00'),
	('heartbeat', '{"build_timeout": 240, "check_interval": 30, "worker_timeout": 300}', '2026-11-23 16:21:51.17215+00');
INSERT INTO public.takt_migrations VALUES
	(11, false);
INSERT INTO public.throttle_configs VALUES
	(62515, 7, 2, 1, 'hour', '2026-11-23 16:20:19.685466+00', NULL);
INSERT INTO public.throttle_queues OVERRIDING SYSTEM VALUE VALUES
	(1, 'queue:62515:3:7:0', 62515, '3', 7, '0', 1, '2026-11-23 16:21:19.734904+00', NULL, 'no token: Portal is not installed', '2026-11-23 16:20:19.715513+00', '2026-11-23 16:20:19.715513+00');
INSERT INTO public.throttle_windows OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 1, 1, '2026-11-22 16:20:19.715513+00', '2026-11-22 16:20:19.715513+00');
INSERT INTO public.worker_details VALUES
	('ZMxhHce1bCgxN0u7ypVWP', 'first', '{"version": "devel", "platforms": ["ios"], "maxConcurrentBuilds": 1}'),
	('mac-mini-3', 'Mac mini 3', '{"platforms": ["ios"], "maxConcurrentBuilds": 2}');
INSERT INTO public.worker_telemetry VALUES
	('mac-mini-3', 'GndwZlIdmYTwMg6ThepPW', '2026-11-23 16:20:19.629041+00', 'heartbeat', 'building', 142.5, 2048, 40, 213, 61, 142.5, 1);
INSERT INTO public.workers OVERRIDING SYSTEM VALUE VALUES
	('ZMxhHce1bCgxN0u7ypVWP', 'offline', 0, 1, '{ios}', '2026-11-23 16:20:19.250839+00', '2026-11-23 16:20:19.450135+00', 1, 1, false, false, 1, 1050625, 2049),
	('mac-mini-3', 'building', 1, 2, '{ios}', '2026-11-23 16:20:19.507871+00', '2026-11-23 16:20:19.611042+00', 0, 0, false, false, 2, 1, 1025);
SELECT pg_catalog.setval('public.audit_id_seq', 1, true);
SELECT pg_catalog.setval('public.build_logs_seq_seq', 20, true);
SELECT pg_catalog.setval('public.builds_seq_seq', 4, true);
SELECT pg_catalog.setval('public.diagnostic_reports_seq_seq', 2, true);
SELECT pg_catalog.setval('public.river_job_id_seq', 3, true);
SELECT pg_catalog.setval('public.river_notification_id_seq', 1, true);
SELECT pg_catalog.setval('public.throttle_claims', 1, true);
SELECT pg_catalog.setval('public.throttle_queues_seq_seq', 1, true);
SELECT pg_catalog.setval('public.throttle_windows_id_seq', 1, true);
SELECT pg_catalog.setval('public.workers_number_seq', 2, true);
ALTER TABLE ONLY public.action_executions
    ADD CONSTRAINT action_executions_pkey PRIMARY KEY (portal_id, callback_id);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.build_days
    ADD CONSTRAINT build_days_pkey PRIMARY KEY (day);
ALTER TABLE ONLY public.build_files
    ADD CONSTRAINT build_files_pkey PRIMARY KEY (build, kind);
ALTER TABLE ONLY public.build_ids
    ADD CONSTRAINT build_ids_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.build_labels
    ADD CONSTRAINT build_labels_pkey PRIMARY KEY (build);
ALTER TABLE ONLY public.build_logs
    ADD CONSTRAINT build_logs_pkey PRIMARY KEY (build, seq);
ALTER TABLE ONLY public.builds
    ADD CONSTRAINT builds_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.deployment_repos
    ADD CONSTRAINT deployment_repos_pkey PRIMARY KEY (deployment_id, name);
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.diagnostic_reports
    ADD CONSTRAINT diagnostic_reports_id_key UNIQUE (id);
ALTER TABLE ONLY public.diagnostic_reports
    ADD CONSTRAINT diagnostic_reports_name_key UNIQUE (name);
ALTER TABLE ONLY public.diagnostic_reports
    ADD CONSTRAINT diagnostic_reports_object_key UNIQUE (object);
ALTER TABLE ONLY public.diagnostic_reports
    ADD CONSTRAINT diagnostic_reports_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.key_check
    ADD CONSTRAINT key_check_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY public.oauth_tokens
    ADD CONSTRAINT oauth_tokens_pkey PRIMARY KEY (portal_id);
ALTER TABLE ONLY public.river_job
    ADD CONSTRAINT river_job_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.river_leader
    ADD CONSTRAINT river_leader_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.river_migration
    ADD CONSTRAINT river_migration_pkey1 PRIMARY KEY (line, version);
ALTER TABLE ONLY public.river_notification
    ADD CONSTRAINT river_notification_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.river_queue
    ADD CONSTRAINT river_queue_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.rollup
    ADD CONSTRAINT rollup_pkey PRIMARY KEY (only_row);
ALTER TABLE ONLY public.settings
    ADD CONSTRAINT settings_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.takt_migrations
    ADD CONSTRAINT takt_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY public.throttle_configs
    ADD CONSTRAINT throttle_configs_pkey PRIMARY KEY (portal_id, action_id);
ALTER TABLE ONLY public.throttle_queues
    ADD CONSTRAINT throttle_queues_id UNIQUE (id);
ALTER TABLE ONLY public.throttle_queues
    ADD CONSTRAINT throttle_queues_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY public.throttle_windows
    ADD CONSTRAINT throttle_windows_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.worker_details
    ADD CONSTRAINT worker_details_pkey PRIMARY KEY (worker_id);
ALTER TABLE ONLY public.worker_telemetry
    ADD CONSTRAINT worker_telemetry_pkey PRIMARY KEY (worker_id);
CREATE INDEX action_executions_finished ON public.action_executions USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX action_executions_waiting ON public.action_executions USING btree (queue, due_at) WHERE (state = 'waiting'::text);
CREATE INDEX build_files_copy_due ON public.build_files USING btree (copy_due) WHERE (copy_due IS NOT NULL);
CREATE INDEX build_files_name ON public.build_files USING btree (name);
CREATE UNIQUE INDEX build_files_object ON public.build_files USING btree (object) WHERE (object IS NOT NULL);
CREATE INDEX builds_ended ON public.builds USING btree (completed_at) WHERE (completed_at IS NOT NULL);
CREATE INDEX builds_held ON public.builds USING btree (worker_id) WHERE (state = ANY (ARRAY['assigned'::text, 'building'::text]));
CREATE INDEX builds_queue ON public.builds USING btree ("position") WHERE (state = 'pending'::text);
CREATE INDEX builds_queue_android ON public.builds USING btree ("position") WHERE ((state = 'pending'::text) AND (platform = 'android'::text));
CREATE INDEX builds_queue_ios ON public.builds USING btree ("position") WHERE ((state = 'pending'::text) AND (platform = 'ios'::text));
CREATE INDEX builds_retries ON public.builds USING btree (retry_root) WHERE ((state = 'pending'::text) AND (retry_root IS NOT NULL));
CREATE INDEX builds_unsuccessful ON public.builds USING btree (seq) WHERE (state = ANY (ARRAY['failed'::text, 'cancelled'::text]));
CREATE INDEX deployment_repos_made ON public.deployment_repos USING btree (made_at) WHERE (made_at IS NOT NULL);
CREATE INDEX deployments_created ON public.deployments USING btree (created_at DESC, id);
CREATE INDEX deployments_credential ON public.deployments USING btree (credential_id);
CREATE INDEX deployments_open ON public.deployments USING btree (id) WHERE (state = ANY (ARRAY['planning'::text, 'running'::text]));
CREATE INDEX diagnostic_reports_worker ON public.diagnostic_reports USING btree (worker_id, seq);
CREATE INDEX idempotency_keys_age ON public.idempotency_keys USING btree (created_at);
CREATE INDEX river_job_args_index ON public.river_job USING gin (args);
CREATE INDEX river_job_kind ON public.river_job USING btree (kind);
CREATE INDEX river_job_metadata_index ON public.river_job USING gin (metadata);
CREATE INDEX river_job_prioritized_fetching_index ON public.river_job USING btree (state, queue, priority, scheduled_at, id);
CREATE INDEX river_job_state_and_finalized_at_index ON public.river_job USING btree (state, finalized_at) WHERE (finalized_at IS NOT NULL);
CREATE UNIQUE INDEX river_job_unique_idx ON public.river_job USING btree (unique_key) WHERE ((unique_key IS NOT NULL) AND (unique_states IS NOT NULL) AND public.river_job_state_in_bitmask(unique_states, state));
CREATE INDEX river_notification_created_at_idx ON public.river_notification USING btree (created_at);
CREATE INDEX river_notification_topic_id_idx ON public.river_notification USING btree (topic, id);
CREATE INDEX throttle_queues_action ON public.throttle_queues USING btree (portal_id, action_id);
CREATE INDEX throttle_windows_claim ON public.throttle_windows USING btree (claim);
CREATE INDEX throttle_windows_queue ON public.throttle_windows USING btree (queue, ended_at);
CREATE INDEX worker_details_name ON public.worker_details USING btree (lower(name) COLLATE "C", worker_id);
CREATE INDEX workers_id ON public.workers USING btree (id);
CREATE INDEX workers_number ON public.workers USING btree (number);
ALTER TABLE ONLY public.build_files
    ADD CONSTRAINT build_files_build_fkey FOREIGN KEY (build) REFERENCES public.builds(seq) ON DELETE CASCADE;
ALTER TABLE ONLY public.build_labels
    ADD CONSTRAINT build_labels_build_fkey FOREIGN KEY (build) REFERENCES public.builds(seq) ON DELETE CASCADE;
ALTER TABLE ONLY public.deployment_repos
    ADD CONSTRAINT deployment_repos_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES public.deployments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.diagnostic_reports
    ADD CONSTRAINT diagnostic_reports_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES public.worker_details(worker_id) ON DELETE CASCADE;
ALTER TABLE ONLY public.worker_telemetry
    ADD CONSTRAINT worker_telemetry_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES public.worker_details(worker_id) ON DELETE CASCADE;
