-- Values that builds ask for by name. Only the worker that holds such a build gets them.
CREATE TABLE IF NOT EXISTS secrets (
    name       text        NOT NULL,
    -- The value, sealed and bound to the name.
    sealed     bytea       NOT NULL,
    -- Whether workers leave the value out of what they send.
    mask       boolean     NOT NULL,
    -- Whether a variable can't have the value.
    is_binary  boolean     NOT NULL,
    -- Whose builds may have it: those of all keys, or of the keys with these names.
    all_keys   boolean     NOT NULL,
    keys       text[]      NOT NULL,
    created_by text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_by text        NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT secrets_pkey PRIMARY KEY (name)
);

-- Attempts that got secrets. The audit has one entry for each, however often a worker asks.
CREATE TABLE IF NOT EXISTS secret_handouts (
    build   bigint      NOT NULL,
    attempt integer     NOT NULL,
    names   text[]      NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT secret_handouts_pkey PRIMARY KEY (build, attempt),
    CONSTRAINT secret_handouts_build_fkey FOREIGN KEY (build) REFERENCES builds (seq) ON DELETE CASCADE
);

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
    UNION ALL
    SELECT 'secret', name, sealed FROM secrets
) v;
