DROP TABLE IF EXISTS throttle_windows;
