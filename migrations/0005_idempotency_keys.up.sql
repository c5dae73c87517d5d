-- Submissions that were made under an Idempotency-Key. Keys are kept as SHA-256,
-- replies sealed with what only their submitter and the server know. No foreign
-- key: what was answered stays what was answered.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    key        bytea       PRIMARY KEY CHECK (length(key) = 32),
    content    bytea       NOT NULL CHECK (length(content) = 32),
    build      text        NOT NULL,
    reply      bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- What is to be forgotten next.
CREATE INDEX IF NOT EXISTS idempotency_keys_age ON idempotency_keys (created_at);
