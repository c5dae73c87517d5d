DROP TABLE IF EXISTS worker_telemetry;
