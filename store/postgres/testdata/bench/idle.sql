-- The naive poll that finds nothing: find the worker by its token, record its
-- presence and rotate the token.
--
--   pgbench -n -M prepared -c 64 -j 2 -T 10 -f idle.sql DATABASE
\set family :client_id + 1
SELECT id AS worker FROM naive_workers WHERE current_family = :family AND current_expires > now() \gset
UPDATE naive_workers SET last_seen_at = now(), poll_seq = poll_seq + 1,
	previous_family = current_family, previous_hash = current_hash, previous_expires = current_expires,
	current_hash = sha256(current_hash), current_expires = now() + interval '1 day'
	WHERE id = :worker;
