CREATE TABLE IF NOT EXISTS build_files (
    build  bigint NOT NULL REFERENCES builds (seq) ON DELETE CASCADE,
    kind   text   NOT NULL CHECK (kind IN ('source', 'certs', 'result')),
    name   text   NOT NULL,
    size   bigint NOT NULL CHECK (size >= 0),
    sha256 bytea  NOT NULL CHECK (length(sha256) = 32),
    CONSTRAINT build_files_pkey PRIMARY KEY (build, kind)
);

-- The storage sweeper asks whether a file has a row.
CREATE INDEX IF NOT EXISTS build_files_name ON build_files (name);
