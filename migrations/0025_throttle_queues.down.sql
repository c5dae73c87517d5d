DROP TABLE IF EXISTS throttle_queues;
