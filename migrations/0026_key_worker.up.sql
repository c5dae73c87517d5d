-- The only worker that a key may be; NULL is any.
ALTER TABLE access_keys ADD COLUMN IF NOT EXISTS worker text;
-- Whether a worker got the key for a token. Such a key belongs to the first worker that
-- registers with it.
ALTER TABLE access_keys ADD COLUMN IF NOT EXISTS enrolled boolean NOT NULL DEFAULT false;
-- contract: 0.1.0 has no keys with names
UPDATE access_keys k SET enrolled = true FROM access_keys t
WHERE k.scopes = '{worker}' AND t.scopes = '{enroll}' AND starts_with(k.created_by, 'key ' || t.name || '@') AND NOT k.enrolled;
