-- Keys with names. A row stays when its key is revoked, so that no other key ever gets the
-- name that stands in builds and in the audit.
CREATE TABLE IF NOT EXISTS access_keys (
    name         text        NOT NULL,
    digest       bytea       NOT NULL, -- SHA-256 of the key
    scopes       text[]      NOT NULL,
    created_by   text        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT access_keys_pkey PRIMARY KEY (name),
    CONSTRAINT access_keys_digest UNIQUE (digest)
);

-- The name of the key that submitted the build; NULL for the API key.
ALTER TABLE builds ADD COLUMN IF NOT EXISTS submitter text;
