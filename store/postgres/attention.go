package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

const (
	sqlAcknowledged = `/* acknowledged */
SELECT a.kind, a.subject, a.made_by, a.reason, a.made_at, a.until, coalesce((SELECT ` + fleetState + ` FROM workers w WHERE w.id = a.subject), ''),
	coalesce((SELECT d.name FROM worker_details d WHERE d.worker_id = a.subject), '')
FROM acknowledgements a WHERE a.until > now() ORDER BY a.made_at, a.kind, a.subject LIMIT 1000`

	// sqlAcknowledge also removes what is over.
	sqlAcknowledge = `/* acknowledge */
WITH over AS (
	DELETE FROM acknowledgements WHERE until <= now() AND (kind <> @kind OR subject <> ALL (@subjects))
)
INSERT INTO acknowledgements AS a (kind, subject, made_by, reason, until)
SELECT @kind, s, @by, @reason, now() + @lasts::interval FROM unnest(@subjects::text[]) AS s
WHERE (SELECT count(*) FROM acknowledgements WHERE until > now()) + cardinality(@subjects::text[]) <= @most
ON CONFLICT (kind, subject) DO UPDATE SET made_by = excluded.made_by, reason = excluded.reason, made_at = now(), until = excluded.until`

	sqlUnacknowledge = `/* unacknowledge */
DELETE FROM acknowledgements WHERE kind = @kind AND (subject = ANY (@subjects) OR cardinality(@subjects::text[]) = 0)`
)

// Acknowledged returns the acknowledgements that have not ended, oldest first.
func (d *Dashboard) Acknowledged(ctx context.Context) ([]store.Acknowledgement, error) {
	return rowsOf(ctx, d.db.read("reading acknowledgements"), pgx.RowToStructByPos[store.Acknowledgement], sqlAcknowledged)
}

// Acknowledge acknowledges problems of a kind for a while, in place of what was acknowledged of
// them before. subjects is not empty. Error: Conflict if there are too many.
func (d *Dashboard) Acknowledge(ctx context.Context, kind string, subjects []string, by, reason string, lasts time.Duration) error {
	full := func() error {
		return store.NewError(store.Conflict, "There are as many acknowledgements as there may be: end some")
	}
	return d.db.write("acknowledging a problem").change(ctx, full, sqlAcknowledge, pgx.NamedArgs{
		"kind": store.Text(kind), "subjects": subjects, "by": store.Text(by), "reason": store.Text(reason), "lasts": lasts, "most": store.MaxAcknowledged,
	})
}

// Unacknowledge ends acknowledgements of a kind: those of some subjects, or without them all. Error:
// NotFound if there is none.
func (d *Dashboard) Unacknowledge(ctx context.Context, kind string, subjects []string) error {
	texts := []string{}
	for _, s := range subjects {
		texts = append(texts, store.Text(s))
	}
	none := func() error { return store.NewError(store.NotFound, "This problem is not acknowledged") }
	return d.db.write("ending an acknowledgement").change(ctx, none, sqlUnacknowledge, pgx.NamedArgs{"kind": store.Text(kind), "subjects": texts})
}

// sqlTroubles looks for notices by the index of River that has the states, and at 2000 at most, because a
// receiver may have been gone for a week.
const sqlTroubles = `/* troubles */
SELECT (
	SELECT coalesce(jsonb_agg(jsonb_build_object('ID', s.id, 'URL', s.url, 'Disabled', CASE WHEN s.disabled LIKE '% 410 %' THEN s.disabled ELSE '' END,
		'Failing', coalesce(j.failing, 0), 'Dead', coalesce(j.dead, 0), 'Since', coalesce(j.since, now()), 'Error', coalesce(j.error, '')) ORDER BY s.created_at, s.id), '[]')
	FROM notice_subscriptions s LEFT JOIN (
		SELECT args->>'subscription' AS id, count(*) FILTER (WHERE state <> 'discarded') AS failing, count(*) FILTER (WHERE state = 'discarded') AS dead,
			min(created_at) AS since, (array_agg(errors[cardinality(errors)]->>'error' ORDER BY attempted_at DESC))[1] AS error
		FROM (
			SELECT * FROM river_job WHERE kind = 'notice' AND queue = 'notices' AND state = ANY ('{available,running,retryable,scheduled,discarded}') AND cardinality(errors) > 0
			LIMIT 2000
		) few GROUP BY 1
	) j ON j.id = s.id WHERE j.id IS NOT NULL AND s.disabled IS NULL OR s.disabled LIKE '% 410 %'
), (
	SELECT coalesce(jsonb_agg(jsonb_build_object('Name', name, 'Expires', expires_at) ORDER BY expires_at, name), '[]') FROM access_keys
	WHERE revoked_at IS NULL AND expires_at < now() + interval '7 days' AND scopes <> '{enroll}'
		AND (expires_at > now() OR expires_at > now() - interval '7 days' AND last_used_at > expires_at - interval '1 day')
), (
	SELECT coalesce(jsonb_agg(DISTINCT btrim(substr(application_name, 14))), '[]') FROM pg_stat_activity
	WHERE ` + listens + `
), (
	SELECT coalesce(jsonb_object_agg(version, n), '{}') FROM (
		SELECT coalesce(d.capabilities->>'version', '') AS version, count(*) AS n FROM workers w JOIN worker_details d ON d.worker_id = w.id
		WHERE w.status <> 'offline' GROUP BY 1 ORDER BY 2 DESC LIMIT 20
	) v
)`

// Troubles returns what needs attention beside the fleet and the queue.
func (d *Dashboard) Troubles(ctx context.Context) (t store.Troubles, err error) {
	return rowOf(ctx, d.db.read("looking for what needs attention"), nil, func(row pgx.CollectableRow) (t store.Troubles, err error) {
		return t, row.Scan(&t.Notices, &t.Keys, &t.Controllers, &t.Workers)
	}, sqlTroubles)
}
