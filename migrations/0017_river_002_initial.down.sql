DROP TABLE IF EXISTS river_job;
DROP FUNCTION IF EXISTS river_job_notify;
DROP TYPE IF EXISTS river_job_state;
DROP TABLE IF EXISTS river_leader;
DELETE FROM river_migration WHERE version = 2;
