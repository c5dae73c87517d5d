DO $$ BEGIN
    IF EXISTS (SELECT FROM information_schema.columns
        WHERE table_schema = current_schema AND table_name = 'river_migration' AND column_name = 'line') THEN
        ALTER TABLE river_migration RENAME TO river_migration_old;
        CREATE TABLE river_migration (
            id         bigserial   PRIMARY KEY,
            created_at timestamptz NOT NULL DEFAULT now(),
            version    bigint      NOT NULL,
            CONSTRAINT version CHECK (version >= 1)
        );
        CREATE UNIQUE INDEX ON river_migration USING btree (version);
        INSERT INTO river_migration (created_at, version)
            SELECT created_at, version FROM river_migration_old WHERE line = 'main' AND version < 5;
        DROP TABLE river_migration_old;
    END IF;
END $$;
ALTER TABLE river_job DROP COLUMN IF EXISTS unique_key;
DROP TABLE IF EXISTS river_client_queue;
DROP TABLE IF EXISTS river_client;
