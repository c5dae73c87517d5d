DROP TABLE IF EXISTS throttle_configs;
