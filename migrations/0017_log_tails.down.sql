DROP TRIGGER IF EXISTS append_log_tail ON builds;
DROP FUNCTION IF EXISTS append_log_tail;
DROP TABLE IF EXISTS build_log_tails;
