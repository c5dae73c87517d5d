DROP TABLE IF EXISTS throttle_windows;
DROP SEQUENCE IF EXISTS throttle_claims;
DROP TABLE IF EXISTS action_executions;
DROP TABLE IF EXISTS throttle_queues;
DROP TABLE IF EXISTS throttle_configs;
