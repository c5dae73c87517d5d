DROP TABLE IF EXISTS worker_telemetry;
DROP TABLE IF EXISTS worker_details;
DROP TABLE IF EXISTS workers;
