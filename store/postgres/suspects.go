package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// suspectsKey is the advisory lock of a transaction that judges workers. Another one waits, because
// it may know of a failure that this one has not seen.
const suspectsKey = 0x74616b74_73757370 // "taktsusp"

const (
	// failedInARow matches workers.attempts, see store.WorkerHealth.
	failedInARow = `attempts ~ '^[be]{5}'`

	sqlAnyAccused = `/* any_accused */ SELECT EXISTS (SELECT FROM workers WHERE suspect IS NOT NULL OR ` + failedInARow + `)`

	// ableOrSuspect is of workers w.
	ableOrSuspect = fleetState + ` IN ('idle', 'building', 'suspect')`

	sqlAbleGroups = `/* able_groups */ SELECT platforms, labels, count(*)::int FROM workers w WHERE ` + ableOrSuspect + ` GROUP BY 1, 2`

	sqlAccused = `/* accused */
SELECT id, platforms, labels, suspect IS NOT NULL, suspect_served, suspect_rests, coalesce(suspect_classes, '{}') FROM workers w
WHERE (suspect IS NOT NULL OR ` + failedInARow + `) AND ` + ableOrSuspect

	// sqlEndedLately reads builds that workers completed, or that their commands failed. takt's own
	// messages are of builds that no command failed. Scalar subqueries are never hashed: that would
	// read all files and labels.
	sqlEndedLately = `/* ended_lately */
SELECT b.seq, b.worker_id, coalesce(b.class, 0), b.state = 'completed', b.completed_at,
	coalesce((SELECT encode(sha256, 'hex') FROM build_files WHERE build = b.seq AND kind = 'source'), b.id),
	coalesce(b.labels->>'app', ''), coalesce(b.labels->>'branch', '')
FROM (
	SELECT *, (SELECT labels FROM build_labels WHERE build = seq) AS labels FROM builds
	WHERE completed_at > now() - $1::interval ORDER BY completed_at DESC LIMIT $2
) b
WHERE b.worker_id IS NOT NULL AND (b.state = 'completed' OR b.state = 'failed' AND b.error_message <> ALL ($3) AND b.error_message NOT LIKE 'No worker could run it, %')
ORDER BY b.completed_at DESC, b.seq DESC`

	sqlClassesOf = `/* classes_of */ SELECT id, platform, require FROM build_classes WHERE id = ANY ($1)`

	// sqlMarkSuspects makes workers suspect, if what they are accused of still holds, and lets
	// suspects rest or be served as before.
	sqlMarkSuspects = `/* mark_suspects */
UPDATE workers w SET suspect = coalesce(suspect, v.why), suspect_since = coalesce(suspect_since, now()),
	suspect_classes = CASE WHEN suspect IS NULL THEN v.classes::int[] ELSE suspect_classes END,
	suspect_rests = CASE WHEN suspect IS NULL THEN 1 ELSE suspect_rests END, suspect_trials = CASE WHEN suspect IS NULL THEN 0 ELSE suspect_trials END,
	suspect_served = v.served, rests_until = CASE WHEN v.served THEN '-infinity' ELSE now() + v.rest END
FROM unnest($1::text[], $2::text[], $3::bool[], $4::interval[], $5::text[]) AS v(worker, why, served, rest, classes)
WHERE w.id = v.worker AND CASE WHEN suspect IS NULL THEN v.why <> '' AND ` + failedInARow + ` ELSE suspect_served <> v.served END
RETURNING w.id, w.status, w.draining, w.number, CASE WHEN v.why <> '' THEN w.suspect ELSE '' END`

	sqlMarkFailed = `/* mark_failed */ UPDATE builds SET suspect = true WHERE seq = ANY ($1) AND state = 'failed'`
)

// CheckSuspects judges the workers whose last builds all failed, and those that are suspect (see
// store.Trial). It returns those for which something has changed, with a step for those that have
// become suspect. While no worker is accused it reads the workers' rows and no builds.
func (q *Queue) CheckSuspects(ctx context.Context) (changed []store.WorkerUpdate, err error) {
	var found bool
	if err := q.db.read("looking for suspect workers").scan(ctx, nil, []any{&found}, sqlAnyAccused); err != nil || !found {
		return nil, err
	}
	err = q.db.write("judging suspect workers").tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		changed = nil
		if _, err := tx.Exec(ctx, sqlHoldLimit, int64(suspectsKey)); err != nil {
			return err
		}
		trial, err := evidence(ctx, tx)
		if err != nil {
			return err
		}
		verdicts := trial.JudgeSuspects()
		n := len(verdicts)
		if n == 0 {
			return nil
		}
		ids, whys, served, rests, classes := make([]string, n), make([]string, n), make([]bool, n), make([]time.Duration, n), make([]string, n)
		for i, v := range verdicts {
			ids[i], whys[i], served[i], rests[i] = v.ID, v.Why, v.Served, v.Rest
			classes[i] = "{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(v.Classes), " ", ","), "[]") + "}"
		}
		rows, _ := tx.Query(ctx, sqlMarkSuspects, ids, whys, served, rests, classes) // its error is that of the rows
		var u store.WorkerUpdate
		var number int64
		batch := &pgx.Batch{}
		if _, err := pgx.ForEachRow(rows, []any{&u.WorkerID, &u.Status, &u.Draining, &number, &u.Step.Lost}, func() error {
			if u.Step.What = ""; u.Step.Lost != "" {
				u.Step.What = store.StepSuspected
				i := slices.Index(ids, u.WorkerID)
				batch.Queue(sqlMarkFailed, verdicts[i].Failed)
			}
			changed = append(changed, u)
			batch.Queue(sqlNotify, fmt.Sprint("worker:changed ", number))
			return nil
		}); err != nil {
			return err
		}
		return tx.SendBatch(ctx, batch).Close()
	})
	return changed, err
}

// evidence reads what store.Trial needs. Builds are read only if a worker that is not suspect yet
// is accused.
func evidence(ctx context.Context, tx pgx.Tx) (t store.Trial, err error) {
	t.Able, err = collect(ctx, tx, func(row pgx.CollectableRow) (g store.FleetGroup, err error) {
		return g, row.Scan(&g.Platforms, &g.Labels, &g.N)
	}, sqlAbleGroups)
	if err != nil {
		return t, err
	}
	var known []int32
	failedIn := map[string][]int32{}
	t.Accused, err = collect(ctx, tx, func(row pgx.CollectableRow) (a store.Accused, err error) {
		var classes []int32
		err = row.Scan(&a.ID, &a.Platforms, &a.Labels, &a.Suspect, &a.Served, &a.Rests, &classes)
		failedIn[a.ID] = classes
		known = append(known, classes...)
		return a, err
	}, sqlAccused)
	if err != nil || len(t.Accused) == 0 {
		return t, err
	}
	if slices.ContainsFunc(t.Accused, func(a store.Accused) bool { return !a.Suspect }) {
		t.Ended, err = collect(ctx, tx, pgx.RowToStructByPos[store.EndedBuild], sqlEndedLately, store.JudgedAge, store.MaxJudged,
			[]string{store.MessageTimeout, store.MessageLost})
		for _, o := range t.Ended {
			if !slices.Contains(known, o.Class) {
				known = append(known, o.Class)
			}
		}
	}
	if err == nil {
		t.Known, err = collect(ctx, tx, pgx.RowToStructByPos[store.Class], sqlClassesOf, known)
	}
	if err == nil {
		t.Waiting, err = collect(ctx, tx, pgx.RowToStructByPos[store.Class], sqlWaitingClasses)
	}
	for i := range t.Accused {
		a := &t.Accused[i]
		for _, c := range t.Known {
			if a.Suspect && slices.Contains(failedIn[a.ID], c.ID) {
				a.Classes = append(a.Classes, c)
			}
		}
	}
	return t, err
}
