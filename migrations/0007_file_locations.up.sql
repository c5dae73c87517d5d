-- Where a file is, its key in S3, and when the copy that S3 is owed is to be
-- tried next.
ALTER TABLE build_files
    ADD COLUMN IF NOT EXISTS location text NOT NULL DEFAULT 'local'
        CONSTRAINT build_files_location CHECK (location IN ('local', 's3', 'both')),
    ADD COLUMN IF NOT EXISTS object   text
        CONSTRAINT build_files_object_known CHECK (object IS NOT NULL OR location = 'local'),
    ADD COLUMN IF NOT EXISTS copy_due timestamptz;

-- The sweep asks whether an object has a row.
CREATE UNIQUE INDEX IF NOT EXISTS build_files_object ON build_files (object) WHERE object IS NOT NULL;

CREATE INDEX IF NOT EXISTS build_files_copy_due ON build_files (copy_due) WHERE copy_due IS NOT NULL;
