/* assign */
WITH locked AS MATERIALIZED (
	SELECT p.nr, p.shown, p.parked, p.reconcile, p.address AS at, w.ctid AS now_at, w.number, w.id, w.used, greatest(p.used, w.used) AS known,
		w.handed, w.held, w.slots, w.platforms, w.draining OR w.critical AND @spare AS drained, w.status = 'offline' AS due
	FROM unnest(@numbers::bigint[], @addresses::tid[], @shown::bigint[], @used::bigint[], @parked::bigint[], @reconcile::bool[])
		WITH ORDINALITY AS p(number, address, shown, used, parked, reconcile, nr)
	JOIN workers w ON w.ctid = p.address
	WHERE w.number = p.number
	ORDER BY w.id FOR NO KEY UPDATE OF w
), judged AS MATERIALIZED (
	SELECT nr, shown, reconcile, at, number, id, used, known, handed, held, slots, platforms, drained, due, CASE
			WHEN parked IS NOT NULL AND (handed <> parked OR shown < used) THEN 1
			WHEN shown < used THEN 2
			ELSE 0
		END AS outcome,
		CASE
			WHEN platforms = '{}' OR platforms @> '{ios,android}' THEN 'x'
			WHEN 'ios' = ANY (platforms) THEN 'i'
			WHEN 'android' = ANY (platforms) THEN 'a'
		END AS kind
	FROM locked WHERE now_at = at
), again AS MATERIALIZED (
	SELECT j.*, b.*
	FROM judged j CROSS JOIN LATERAL (
		SELECT b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at, b.handed AS hand_out
		FROM builds b
		WHERE b.worker_id = j.id AND b.state = 'assigned'
			AND (j.shown IS NULL OR b.handed > j.shown OR j.reconcile OR j.slots = 1)
			AND (NOT j.reconcile OR j.nr || ' ' || b.id <> ALL (@listed::text[]))
		ORDER BY b.handed, b.seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
	) b
	WHERE (SELECT count(*) FROM locked) > 0 AND j.outcome = 0 AND j.held > 0
		AND (j.shown IS NULL OR j.handed > j.shown OR j.reconcile OR j.slots = 1)
), want AS MATERIALIZED (
	SELECT nr, at, number, id, known, handed, held, slots, platforms, drained, kind,
		(row_number() OVER (PARTITION BY kind ORDER BY nr))::int AS n
	FROM judged
	WHERE outcome = 0 AND NOT drained AND held < slots AND kind IS NOT NULL AND nr NOT IN (SELECT nr FROM again)
), i AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND position >= @from_ios AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'ios' AND position < CASE WHEN @below THEN @from_ios ELSE 0 END AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'i')
), a AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND position >= @from_android AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND platform = 'android' AND position < CASE WHEN @below THEN @from_android ELSE 0 END AND seq <> ALL (@skip::bigint[])
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'a')
), x AS MATERIALIZED (
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND position >= @from_all AND seq <> ALL (@skip::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) head
	UNION ALL
	SELECT * FROM (
		SELECT ctid AS tid FROM builds WHERE state = 'pending' AND position < CASE WHEN @below THEN @from_all ELSE 0 END AND seq <> ALL (@skip::bigint[])
			AND ctid <> ALL (ARRAY(SELECT tid FROM i UNION ALL SELECT tid FROM a))
		ORDER BY position LIMIT 256 FOR NO KEY UPDATE SKIP LOCKED) below
	LIMIT (SELECT count(*) FROM want WHERE kind = 'x')
), claimed AS (
	UPDATE builds b SET state = 'assigned', worker_id = c.id, attempt = b.attempt + 1, handed = c.hand_out,
		started_at = now(), last_seen_at = NULL, updated_at = now()
	FROM (
		SELECT *, greatest(handed, known) + 1024 AS hand_out, CASE kind
			WHEN 'x' THEN (ARRAY(SELECT tid FROM x))[n]
			WHEN 'i' THEN (ARRAY(SELECT tid FROM i))[n]
			WHEN 'a' THEN (ARRAY(SELECT tid FROM a))[n]
		END AS tid FROM want
	) c
	WHERE b.ctid = c.tid AND b.state = 'pending'
	RETURNING c.nr, c.at, c.number, c.id, c.known, c.held, c.slots, c.platforms, c.drained, c.hand_out,
		b.seq, b.position, b.id AS build, b.platform, b.attempt, b.has_certs, b.submitted_at,
		CASE WHEN b.attempt = 1 THEN b.submitted_at ELSE (SELECT was.updated_at FROM builds was WHERE was.ctid = c.tid) END AS since
), logged AS (
	INSERT INTO build_logs (build, message)
	SELECT seq, 'Assigned to worker ' || id || CASE WHEN attempt > 1 THEN ' (attempt ' || attempt || ')' ELSE '' END
	FROM claimed
), turn AS MATERIALIZED (
	SELECT nr, at, number, id, known, hand_out AS handed, held + 1 AS held, slots, platforms, drained, true AS write,
		build, platform, attempt, has_certs, submitted_at, since, hand_out, position FROM claimed
	UNION ALL
	SELECT nr, at, number, id, known, handed, held, slots, platforms, drained, due,
		build, platform, attempt, has_certs, submitted_at, NULL, hand_out, 0 FROM again
	UNION ALL
	SELECT nr, at, number, id, known, handed, held, slots, platforms, drained, due,
		NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0 FROM judged
	WHERE outcome = 0 AND nr NOT IN (SELECT nr FROM claimed) AND nr NOT IN (SELECT nr FROM again)
), written AS (
	UPDATE workers w SET used = t.known, handed = t.handed, held = t.held, last_seen_at = now(),
		status = CASE WHEN t.held > 0 THEN 'building' ELSE 'idle' END
	FROM turn t
	WHERE w.ctid = t.at AND t.write
	RETURNING t.*, w.ctid AS now_at
)
SELECT nr, 0, number, id, known, handed, held, slots, platforms, drained, now_at,
	build, platform, attempt, has_certs, submitted_at, since, hand_out, position FROM written
UNION ALL
SELECT nr, 0, number, id, known, handed, held, slots, platforms, drained, at,
	build, platform, attempt, has_certs, submitted_at, since, hand_out, position FROM turn WHERE NOT write
UNION ALL
SELECT nr, outcome, number, id, used, handed, held, slots, platforms, drained, at,
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0 FROM judged WHERE outcome > 0
