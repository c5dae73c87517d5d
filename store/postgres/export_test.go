package postgres

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// ClaimSQL is claimSQL, for tests of its plans.
var ClaimSQL = claimSQL

// ForgetWorkers makes submits look at the workers anew.
func ForgetWorkers(db *DB) { db.known.forget() }

// Waiting returns how many results and heartbeats are in no batch yet.
func (b *Builds) Waiting() (results, heartbeats int) { return b.endings.Waiting(), b.beats.Waiting() }

// Ending is a result that FinishTogether records, and what became of it.
type Ending struct {
	store.Result
	Alone bool
	store.Finished
	Err error
}

// FinishTogether records results in one transaction, and afterwards those that it left alone.
func (b *Builds) FinishTogether(ctx context.Context, some []Ending) {
	all := make([]*ending, len(some))
	for i, e := range some {
		all[i] = &ending{Result: e.Result}
	}
	err := b.recordTogether(all)
	for i, e := range all {
		if some[i].Alone = e.alone; err == nil && e.alone {
			some[i].Err = b.recordEnds(ctx, b.db.write("recording a result"), []*ending{e})
		}
		if e.blamed != nil && e.blamed.rest > 0 {
			b.cfg.Quarantined(e.blamed.id, e.blamed.health.Quarantine, e.blamed.status)
		}
		some[i].Finished, some[i].Err = e.finished(), cmp.Or(err, some[i].Err, e.err)
	}
}

// BeatTogether records heartbeats in one statement, and afterwards those that were passed over.
// It replies to the first as Heartbeat does, to the next as RecordHeartbeat, and so on.
func (b *Builds) BeatTogether(ctx context.Context, some []store.Heartbeat) (replies []store.HeartbeatReply, errs []error) {
	all := make([]*beat, len(some))
	for i, s := range some {
		all[i] = &beat{Heartbeat: s, asks: i%2 == 0}
	}
	err := b.beatTogether(all)
	for _, s := range all {
		var reply store.HeartbeatReply
		err := err
		if err == nil && s.lost {
			err = b.db.write("recording").run(ctx, func(ctx context.Context, c *pgx.Conn) error { return b.recordAlone(ctx, c, s) })
		}
		switch {
		case err != nil:
		case s.asks:
			reply.Began, reply.Attempt = s.st.began, s.st.attempt
			reply.Cancelled, err = s.st.heartbeat(s.Heartbeat)
		default:
			reply, err = s.st.reply(s.Heartbeat)
		}
		replies, errs = append(replies, reply), append(errs, err)
	}
	return replies, errs
}
