DROP TABLE IF EXISTS throttle_totals;
