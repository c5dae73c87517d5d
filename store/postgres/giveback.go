package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// GiveBack makes a build pending again that its worker could not run for a reason of the
// worker's own (r.Fault). The worker gets no builds for a while, so that another one takes
// this one, and may be quarantined. If the build has been given back store.MaxGiveBacks
// times, it fails instead.
//
// The holder can give a build back. If the last holder gives back a build that is pending,
// that is a repeat and changes nothing. The errors are those of Finish.
func (b *Builds) GiveBack(ctx context.Context, r store.Result) (back store.GiveBack, err error) {
	r.Success, r.File, r.ErrorMessage = false, nil, store.ErrorText(r.ErrorMessage)
	err = b.db.write("giving build "+r.BuildID+" back").requeue(ctx, func(ctx context.Context, tx pgx.Tx) (refs []store.BuildRef, err error) {
		st, err := lockRelation(ctx, tx, r)
		if err != nil {
			return nil, err
		}
		repeat, err := st.result(r)
		if back = (store.GiveBack{State: st.state, Repeat: repeat || st.state == store.Pending}); back.Repeat || err != nil {
			return nil, err
		}
		if back.Status = store.Idle; st.held > 1 {
			back.Status = store.Busy
		}
		before := st.health.Backoffs
		if st.givenBack >= store.MaxGiveBacks {
			back.State = store.Failed
			failed := r
			failed.ErrorMessage = store.ErrorText(fmt.Sprintf("No worker could run it, %d attempts failed. The last one (%s): %s",
				st.givenBack+1, r.Fault, r.ErrorMessage))
			err = b.writeResult(ctx, tx, &st, failed)
		} else {
			back.State = store.Pending
			refs, err = b.giveBack(ctx, tx, &st, r)
		}
		if st.health.Backoffs > before {
			back.Quarantined = st.health.Quarantine
		}
		return refs, err
	})
	if err != nil {
		return store.GiveBack{}, err
	}
	return back, nil
}

// healthColumns sets the columns of workers whose values recordEnd has computed.
const healthColumns = `
	attempts = @attempts, quarantine = nullif(@quarantine, ''), quarantines = @backoffs,
	rests_until = CASE WHEN @rest::interval > interval '0' THEN now() + @rest ELSE rests_until END`

// recordEnd updates the worker's health in st for the end of the attempt, and adds the
// arguments of healthColumns. Only the end of an attempt that the worker still held counts.
func (b *Builds) recordEnd(st *relation, r store.Result, args pgx.NamedArgs) {
	var rest time.Duration
	if st.holder == r.WorkerID {
		rest = st.health.Ended(b.cfg.Quarantine, r)
	}
	args["attempts"], args["quarantine"], args["backoffs"], args["rest"] = st.health.Attempts, st.health.Quarantine, st.health.Backoffs, rest
}

// sqlGiveBack makes a build pending again and frees a slot of its holder. Both are locked.
const sqlGiveBack = `/* give_back */
WITH b AS (
	UPDATE builds SET given_back = given_back + 1,` + pendingAgain + `
	WHERE seq = (SELECT seq FROM build_ids WHERE id = @build)
	RETURNING seq, platform, class, position, attempt, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, 'warn', @line, 'requeued', @worker, attempt, jsonb_build_object('reason', @fault::text, 'error', @error::text) FROM b
), w AS (
	UPDATE workers SET held = held - 1, last_seen_at = now(),` + healthColumns + `,
		status = CASE WHEN held > 1 THEN 'building' ELSE 'idle' END
	WHERE id = @worker
)
SELECT platform, class, position FROM b`

func (b *Builds) giveBack(ctx context.Context, tx pgx.Tx, st *relation, r store.Result) ([]store.BuildRef, error) {
	args := pgx.NamedArgs{
		"build": r.BuildID, "worker": r.WorkerID, "fault": string(r.Fault), "error": r.ErrorMessage,
		"line": fmt.Sprintf("Worker %s gave this build back (%s: %s), build is pending again", r.WorkerID, r.Fault, r.ErrorMessage),
	}
	b.recordEnd(st, r, args)
	var back store.BuildRef
	if err := tx.QueryRow(ctx, sqlGiveBack, args).Scan(&back.Platform, &back.ClassID, &back.Position); err != nil {
		return nil, fmt.Errorf("writing the build: %w", err)
	}
	return []store.BuildRef{back}, nil
}
