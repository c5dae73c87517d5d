-- The naive poll that gets a build: one transaction of its own, a statement per
-- step: find the worker by its token, record its presence and rotate the token,
-- claim the oldest pending build, assign it, mark the worker, write the log.
--
--   pgbench -n -M prepared -c 64 -j 2 -T 10 -f assigned.sql DATABASE
\set family :client_id + 1
BEGIN;
SELECT id AS worker FROM naive_workers WHERE current_family = :family AND current_expires > now() \gset
UPDATE naive_workers SET last_seen_at = now(), poll_seq = poll_seq + 1,
	previous_family = current_family, previous_hash = current_hash, previous_expires = current_expires,
	current_hash = sha256(current_hash), current_expires = now() + interval '1 day'
	WHERE id = :worker;
SELECT seq FROM naive_builds WHERE state = 'pending' ORDER BY place LIMIT 1 FOR UPDATE SKIP LOCKED \gset
UPDATE naive_builds SET state = 'assigned', worker_id = :worker, attempt = attempt + 1, started_at = now(), updated_at = now()
	WHERE seq = :seq;
UPDATE naive_workers SET held = held + 1, status = 'building' WHERE id = :worker;
INSERT INTO naive_logs (build, message) VALUES (:seq, 'Assigned to worker');
COMMIT;
