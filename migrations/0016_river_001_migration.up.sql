-- River's version 001: the table in which its own tools note what was applied.
-- These files follow River's, one per version, made idempotent; a test compares
-- the result with what River's migrator makes.
CREATE TABLE IF NOT EXISTS river_migration (
    id         bigserial   PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now(),
    version    bigint      NOT NULL,
    CONSTRAINT version CHECK (version >= 1)
);
CREATE UNIQUE INDEX IF NOT EXISTS river_migration_version_idx ON river_migration USING btree (version);
INSERT INTO river_migration (version) VALUES (1) ON CONFLICT DO NOTHING;
