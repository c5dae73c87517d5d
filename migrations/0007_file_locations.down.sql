DROP INDEX IF EXISTS build_files_copy_due;
DROP INDEX IF EXISTS build_files_object;
ALTER TABLE build_files
    DROP COLUMN IF EXISTS copy_due,
    DROP COLUMN IF EXISTS object,
    DROP COLUMN IF EXISTS location;
