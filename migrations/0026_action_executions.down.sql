DROP SEQUENCE IF EXISTS throttle_claims;
DROP TABLE IF EXISTS action_executions;
