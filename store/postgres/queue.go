package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// QueueConfig configures Queue.
type QueueConfig struct {
	// TokenTTL is how long a worker token is valid. Defaults to 90 s.
	TokenTTL time.Duration
	// SpareCritical gives no builds to workers whose last diagnostic report is
	// critical.
	SpareCritical bool
	// Quarantined, if set, is told of each build that can't be handed out and is
	// passed over from then on. It must not block.
	Quarantined func(b store.BuildRef, cause error)
}

// MaxBatch is how many polls Serve takes at once.
const MaxBatch = 256

// serveTimeout bounds an assignment transaction.
const serveTimeout = 5 * time.Second

// Queue hands builds to workers and takes them back. Safe for concurrent use;
// two batches in flight keep PostgreSQL busy, more only wait for each other.
type Queue struct {
	db    *DB
	cfg   QueueConfig
	skip  quarantine
	idle  idle
	spots spots
}

// NewQueue returns the queue of db.
func NewQueue(db *DB, cfg QueueConfig) *Queue {
	if cfg.TokenTTL <= 0 {
		cfg.TokenTTL = 90 * time.Second
	}
	return &Queue{db: db, cfg: cfg}
}

// Serve serves up to MaxBatch polls in one statement, which is one round trip and
// one transaction (two while the queue runs empty or fills): it checks their tokens, records the workers' presence, hands
// out again what a lost reply may have kept, claims pending builds for free slots
// (first come, first served, by priority and submission), writes the log and
// rotates tokens. The answer to polls[i] is at i.
//
// All or nothing: an error leaves builds pending and tokens as they were, unless
// it wraps store.ErrOutcomeUnknown; then the workers' next polls, with the tokens
// they have, get what was assigned. A build that the database refuses to assign
// is quarantined instead of failing the batch.
func (q *Queue) Serve(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	if len(polls) > MaxBatch {
		return nil, fmt.Errorf("serving %d polls: more than %d", len(polls), MaxBatch)
	}
	if len(polls) == 0 {
		return nil, nil
	}
	if q.idle.worthTrying(time.Now()) {
		// Whatever goes wrong here is told by the full statement.
		if results, left, err := q.serveIdle(ctx, polls); err == nil && results != nil {
			return q.serveRest(ctx, polls, results, left), nil
		} else if err != nil && !isDataError(err) {
			return nil, fmt.Errorf("serving %d polls: %w", len(polls), err)
		}
	}
	if results, left, err := q.servePlain(ctx, polls); err == nil && results != nil {
		results = q.serveRest(ctx, polls, results, left)
		q.idle.learn(results)
		return results, nil
	} else if err != nil && !isDataError(err) {
		return nil, fmt.Errorf("serving %d polls: %w", len(polls), err)
	}
	results, err := q.serveFully(ctx, polls)
	if err != nil {
		return nil, fmt.Errorf("serving %d polls: %w", len(polls), err)
	}
	return results, nil
}

// serveRest serves the polls that serveIdle has left, whose results are still
// open. The others are answered already, so an error is that of the rest alone.
func (q *Queue) serveRest(ctx context.Context, polls []store.Poll, results []store.PollResult, left []int) []store.PollResult {
	if len(left) == 0 {
		return results
	}
	rest := make([]store.Poll, len(left))
	for i, at := range left {
		rest[i] = polls[at]
	}
	served, err := q.serveFully(ctx, rest)
	for i, at := range left {
		if err != nil {
			results[at] = store.PollResult{Outcome: store.PollFailed, WorkerID: rest[i].WorkerID, Err: err}
			continue
		}
		results[at] = served[i]
	}
	return results
}

// serveFully serves polls with sqlServe, in one transaction if it can.
func (q *Queue) serveFully(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	results, err := q.serve(ctx, polls)
	if err != nil && isDataError(err) {
		results, err = q.serveApart(ctx, polls)
	}
	if err == nil {
		q.idle.learn(results)
	}
	return results, err
}

// movedTries is how often polls are served anew whose workers' rows moved.
const movedTries = 3

var errMoves = errors.New("the worker's row keeps changing")

// serve runs the statement, and again for polls whose worker was changed by
// somebody else in the very moment. The others are answered by then, so an error
// is that of the rest alone.
func (q *Queue) serve(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	results, moved, err := q.serveOnce(ctx, polls)
	if err != nil {
		return nil, err
	}
	for try := 1; len(moved) > 0; try++ {
		moved = q.serveMoved(ctx, polls, results, moved, try == movedTries)
	}
	return results, nil
}

// serveMoved serves the polls at the indices moved. It returns those whose workers
// moved once more, and fails them if this was the last try.
func (q *Queue) serveMoved(
	ctx context.Context, polls []store.Poll, results []store.PollResult, moved []int, last bool,
) (again []int) {
	rest := make([]store.Poll, len(moved))
	for i, at := range moved {
		rest[i] = polls[at]
	}
	served, left, err := q.serveOnce(ctx, rest)
	if err == nil && last {
		err = unavailable(errMoves)
	}
	for i, at := range moved {
		switch {
		case served != nil && !slices.Contains(left, i):
			results[at] = served[i]
		case err != nil:
			results[at] = store.PollResult{Outcome: store.PollFailed, WorkerID: rest[i].WorkerID, Err: err}
		default:
			again = append(again, at)
		}
	}
	return again
}

// serveOnce runs the statement once. moved are the indices of polls that it left.
func (q *Queue) serveOnce(ctx context.Context, polls []store.Poll) (results []store.PollResult, moved []int, err error) {
	head := q.db.head.begin()
	var b batch
	args := batchArgs(polls, q.cfg, q.skip.list(), head, q.spots.of(polls))
	err = q.db.run(ctx, serveTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlServe, args...)
		if err == nil {
			b, err = scanPolls(rows, polls)
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		q.db.head.undo(head)
		return nil, nil, err
	}
	q.db.head.end(head, b.first)
	q.spots.learn(polls, b.results, b.at)
	return b.results, b.moved, nil
}

// sqlPending counts, per platform, up to $1 pending builds from the place $2 on.
const sqlPending = `
SELECT 'ios', count(*) FROM (
	SELECT FROM builds WHERE state = 'pending' AND platform = 'ios' AND place >= $2 LIMIT $1) i
UNION ALL
SELECT 'android', count(*) FROM (
	SELECT FROM builds WHERE state = 'pending' AND platform = 'android' AND place >= $2 LIMIT $1) a`

// sqlPendingBelow counts up to $1 of those below $2 and finds the first.
const sqlPendingBelow = `
SELECT 'ios', count(*), coalesce(min(place), 0) FROM (
	SELECT place FROM builds WHERE state = 'pending' AND platform = 'ios' AND place < $2 ORDER BY place LIMIT $1) i
UNION ALL
SELECT 'android', count(*), coalesce(min(place), 0) FROM (
	SELECT place FROM builds WHERE state = 'pending' AND platform = 'android' AND place < $2 ORDER BY place LIMIT $1) a`

// Pending returns how many builds wait per platform, counting up to limit of
// each. By the way it looks below the marks, if that is due: there wait builds
// that other controllers have put back. What could not be seen there is missing
// in the counts until the next look.
func (q *Queue) Pending(ctx context.Context, limit int) (counts map[store.Platform]int, err error) {
	look, mark, due := q.db.head.beginLook()
	err = q.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		counts = map[store.Platform]int{}
		var p store.Platform
		var n int
		rows, err := c.Query(ctx, sqlPending, limit, mark)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&p, &n}, func() error {
			counts[p] = n
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counting pending builds: %w", err)
	}
	if due {
		q.look(ctx, limit, look, mark, counts)
	}
	return counts, nil
}

// look adds to counts what waits below mark. While nothing can be vacuumed that
// may take longer than anybody should wait for, so its failure is no failure of
// the count: looks rest, then.
func (q *Queue) look(ctx context.Context, limit int, look scan, mark int64, counts map[store.Platform]int) {
	var lowest marks
	err := q.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		var p store.Platform
		var n int
		var first int64
		rows, err := c.Query(ctx, sqlPendingBelow, limit, mark)
		if err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&p, &n, &first}, func() error {
			counts[p] = min(limit, counts[p]+n)
			lowest[laneOf([]store.Platform{p})] = first
			return nil
		})
		return err
	})
	q.db.head.endLook(look, mark, lowest, err)
}
