package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// GiveBack makes a build pending again that its worker could not run for a reason of the
// worker's own (r.Fault). The worker gets no builds for a while, so that another one takes
// this one, and may be quarantined. If the build has been given back store.MaxGiveBacks
// times, or has as many attempts as it was submitted with, it fails instead.
//
// The holder can give a build back. If the last holder gives back a build that is pending,
// that is a repeat and changes nothing. The errors are those of Finish.
func (b *Builds) GiveBack(ctx context.Context, r store.Result) (back store.GiveBack, err error) {
	r.Success, r.File, r.ErrorMessage = false, nil, store.ErrorText(r.ErrorMessage)
	err = b.db.write("giving build "+r.BuildID+" back").requeue(ctx, func(ctx context.Context, tx pgx.Tx) (refs []store.BuildRef, err error) {
		e, rows := &ending{Result: r}, ends{}
		locks, writes := &pgx.Batch{}, &pgx.Batch{}
		rows.lock(locks, []*ending{e}, sqlLockEnders, sqlLockEnds)
		if err := tx.SendBatch(ctx, locks).Close(); err != nil {
			return nil, fmt.Errorf("locking the worker and the build: %w", err)
		}
		rows.relate(e)
		repeat, err := e.st.result(r)
		if back = (store.GiveBack{State: e.st.state, Repeat: repeat || e.st.state == store.Pending}); back.Repeat || err != nil {
			return nil, err
		}
		w := rows.workers[r.WorkerID]
		before := w.health.Backoffs
		if e.st.givenBack >= store.MaxGiveBacks || e.st.most > 0 && e.st.givenBack+e.st.lost+1 >= e.st.most {
			back.State = store.Failed
			e.ErrorMessage = store.ErrorText(fmt.Sprintf("No worker could run it, %d attempts failed. The last one (%s): %s",
				e.st.givenBack+1, r.Fault, r.ErrorMessage))
			e.Ended = store.EndedGivenBack
			b.decideEnds(&rows, []*ending{e})
		} else {
			back.State, refs = store.Pending, make([]store.BuildRef, 1)
			giveBack(writes, r, &refs[0])
			w.held--
			w.seen = true
			w.ended(b.cfg.Quarantine, r)
			rows.written = append(rows.written, w)
		}
		if back.Status = store.Idle; w.held > 0 {
			back.Status = store.Busy
		}
		if w.health.Backoffs > before {
			back.Quarantined = w.health.Quarantine
		}
		rows.write(writes)
		return refs, tx.SendBatch(ctx, writes).Close()
	})
	if err != nil {
		return store.GiveBack{}, err
	}
	return back, nil
}

// sqlGiveBack makes a build pending again, which is locked.
const sqlGiveBack = `/* give_back */
WITH b AS (
	UPDATE builds SET given_back = given_back + 1,` + pendingAgain + `
	WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)
	RETURNING seq, platform, class, position, attempt, log_lines
), l AS (
	INSERT INTO build_logs (build, number, level, message, kind, worker, attempt, facts)
	SELECT seq, log_lines, 'warn', $3, 'requeued', $2, attempt, jsonb_build_object('reason', $4::text, 'error', $5::text) FROM b
)
SELECT platform, class, position FROM b`

// giveBack queues the statement that makes the build of r pending again, and sets where it is
// then.
func giveBack(batch *pgx.Batch, r store.Result, back *store.BuildRef) {
	line := fmt.Sprintf("Worker %s gave this build back (%s: %s), build is pending again", r.WorkerID, r.Fault, r.ErrorMessage)
	batch.Queue(sqlGiveBack, r.BuildID, r.WorkerID, line, string(r.Fault), r.ErrorMessage).QueryRow(func(row pgx.Row) error {
		return row.Scan(&back.Platform, &back.ClassID, &back.Position)
	})
}
