-- The keys to HubSpot's portals, sealed.
CREATE TABLE IF NOT EXISTS oauth_tokens (
    portal_id     bigint      PRIMARY KEY,
    access_token  bytea       NOT NULL,
    refresh_token bytea       NOT NULL,
    expires_at    timestamptz NOT NULL,
    scopes        text        NOT NULL DEFAULT '',
    -- Grows with every change of the tokens.
    version       bigint      NOT NULL DEFAULT 1,
    -- Who refreshes, and until when that is its right.
    refresh_claim bigint,
    refresh_until timestamptz,
    last_error    text,
    installed_at  timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
