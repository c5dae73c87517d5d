-- What a submitter wrote on its build. Beside the builds' table: a build changes
-- its state several times, and its labels never.
CREATE TABLE IF NOT EXISTS build_labels (
    build  bigint PRIMARY KEY REFERENCES builds (seq) ON DELETE CASCADE,
    labels jsonb  NOT NULL
);
