-- What operators change at run time. One row per group of settings.
CREATE TABLE IF NOT EXISTS settings (
    key        text        PRIMARY KEY,
    value      jsonb       NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Tokens of one installation mean nothing to another that has the same key.
INSERT INTO settings (key, value) VALUES ('installation', to_jsonb(gen_random_uuid()::text)) ON CONFLICT DO NOTHING;
