package postgres

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/batching"
)

// ending is a result while it is recorded. Transactions that are tried again set anew what
// follows alone.
type ending struct {
	store.Result
	files   []store.Staged // of a success
	request trace.SpanContext
	// alone is true if it must be recorded in a transaction of its own, which waits for locks:
	// another transaction has locked its rows, or it completes a retry, for which a second
	// worker may be locked.
	alone bool

	st     relation
	seq    int64       // of the build
	was    store.Build // see store.Finished
	blamed *ender
	repeat bool
	again  bool          // the build is pending again, because of its exit code
	took   time.Duration // to give its file its name
	err    error         // why the result was refused although others of the same transaction were recorded
}

// ender is the locked row of a worker whose builds end, and how it changes.
type ender struct {
	id      string
	number  uint32
	status  store.WorkerStatus
	held    int
	health  store.WorkerHealth
	suspect store.Suspicion
	rest    time.Duration // how long it gets no builds from now on; 0 leaves that as it is
	seen    bool          // it has just reported something itself
	counted [2]int        // builds that it completed and failed
}

// endingsAtOnce is how transactions record results: each the results of many workers.
var endingsAtOnce = batching.Pace{Parallel: 2, Most: 96, Few: 4, Alone: 96, Linger: 5 * time.Millisecond, Return: time.Millisecond}

const (
	// lockEnders and lockEnds lock the workers, then the builds, in the order of every
	// statement that locks several.
	lockEnders = `SELECT id, number, status, held, attempts, coalesce(quarantine, ''), quarantines, rests_until > now(),
	suspect IS NOT NULL, suspect_served, suspect_rests, suspect_trials
FROM workers WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
	lockEnds = `SELECT id, seq, state, coalesce(worker_id, ''), coalesce(last_worker_id, ''), attempt, given_back, retry_root IS NOT NULL, lost, coalesce(ended, ''),
	CASE WHEN has_inputs THEN coalesce((SELECT max_attempts FROM build_inputs WHERE build = seq), 0) ELSE 0 END,
	CASE WHEN has_inputs THEN (SELECT retry_on FROM build_inputs WHERE build = seq) END,
	platform, submitted_at, started_at, CASE WHEN has_inputs IS DISTINCT FROM false THEN (SELECT labels FROM build_labels WHERE build = seq) END
FROM builds WHERE seq = ANY (ARRAY(SELECT seq FROM build_ids WHERE id = ANY ($1))) ORDER BY seq FOR UPDATE`

	sqlLockEnders = `/* lock_enders */ ` + lockEnders
	sqlLockEnds   = `/* lock_ends */ ` + lockEnds
	// sqlTryEnders and sqlTryEnds leave out rows that another transaction has locked, so that
	// one slow transaction does not hold up all who share this one.
	sqlTryEnders = `/* try_enders */ ` + lockEnders + ` SKIP LOCKED`
	sqlTryEnds   = `/* try_ends */ ` + lockEnds + ` SKIP LOCKED`

	// sqlEndBuilds ends builds. Only completed ones have a file.
	sqlEndBuilds = `/* end_builds */
WITH b AS (
	UPDATE builds SET state = CASE WHEN e.success THEN 'completed' ELSE 'failed' END, worker_id = e.worker,
		error_message = e.message, ended = nullif(e.ended, ''), suspect = nullif(e.suspect, false), completed_at = now(), updated_at = now(), last_seen_at = now(), log_lines = log_lines + 1
	FROM unnest($1::bigint[], $2::text[], $3::bool[], $4::text[], $5::text[], $6::text[], $7::bool[]) AS e(build, worker, success, message, line, ended, suspect)
	WHERE seq = e.build
	RETURNING seq, state, attempt, log_lines, worker_id, success, line
), f AS (
	INSERT INTO build_files (build, kind, name, size, sha256, location, object, copy_due)
	SELECT * FROM unnest($8::bigint[], $9::text[], $10::text[], $11::bigint[], $12::bytea[], $13::text[], $14::text[], $15::timestamptz[])
)
INSERT INTO build_logs (build, number, level, message, kind, worker, attempt)
SELECT seq, log_lines, CASE WHEN success THEN 'info' ELSE 'error' END, line, state, worker_id, attempt FROM b`

	// sqlEndWorkers writes what ends of builds change in workers.
	sqlEndWorkers = `/* end_workers */
UPDATE workers SET held = e.held, completed = completed + e.done, failed = failed + e.lost,
	attempts = e.attempts, quarantine = nullif(e.quarantine, ''), quarantines = e.backoffs,
	rests_until = CASE WHEN e.rest > interval '0' THEN now() + e.rest ELSE rests_until END,
	suspect = CASE WHEN e.suspect THEN workers.suspect END, suspect_since = CASE WHEN e.suspect THEN suspect_since END,
	suspect_served = e.suspect AND suspect_served, suspect_rests = e.suspect_rests, suspect_trials = e.trials,
	last_seen_at = CASE WHEN e.seen THEN now() ELSE last_seen_at END,
	status = CASE WHEN NOT e.seen THEN status WHEN e.held > 0 THEN 'building' WHEN status = 'offline' AND e.held = workers.held THEN 'offline' ELSE 'idle' END
FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::text[], $6::text[], $7::int[], $8::interval[], $9::bool[], $10::bool[], $11::int[], $12::int[])
	AS e(worker, held, done, lost, attempts, quarantine, backoffs, rest, seen, suspect, suspect_rests, trials)
WHERE id = e.worker`
)

// columns returns the targets of lockEnders.
func (w *ender) columns() []any {
	return []any{
		&w.id, &w.number, &w.status, &w.held, &w.health.Attempts, &w.health.Quarantine, &w.health.Backoffs, &w.health.Resting,
		&w.suspect.Suspect, &w.suspect.Served, &w.suspect.Rests, &w.suspect.Trials,
	}
}

// ends are the rows that a transaction has locked.
type ends struct {
	workers map[string]*ender
	builds  map[string]*lockedEnd
	// written are the workers whose rows change, recorded the results that are written, and again
	// those after which the build is tried again.
	written         []*ender
	recorded, again []*ending
}

// lockedEnd is the locked row of a build.
type lockedEnd struct {
	relation
	seq int64
	was store.Build
}

// lock queues the statements that lock the rows of some results; see lockEnders.
func (rows *ends) lock(batch *pgx.Batch, some []*ending, enders, ends string) {
	rows.workers, rows.builds = make(map[string]*ender, len(some)), make(map[string]*lockedEnd, len(some))
	workers, builds := make([]string, len(some)), make([]string, len(some))
	for i, e := range some {
		workers[i], builds[i] = e.WorkerID, e.BuildID
	}
	batch.Queue(enders, workers).Query(func(r pgx.Rows) error {
		var w ender
		_, err := pgx.ForEachRow(r, w.columns(), func() error {
			one := w
			rows.workers[w.id] = &one
			return nil
		})
		return err
	})
	batch.Queue(ends, builds).Query(func(r pgx.Rows) error {
		var id string
		var b lockedEnd
		_, err := pgx.ForEachRow(r, []any{
			&id, &b.seq, &b.state, &b.holder, &b.lastHolder, &b.attempt, &b.givenBack, &b.retry, &b.lost, &b.ended, &b.most, &b.retryOn,
			&b.was.Platform, &b.was.SubmittedAt, &b.was.StartedAt, &b.was.Labels,
		}, func() error {
			one := b
			one.buildKnown = true
			one.was.ID, one.was.State, one.was.WorkerID, one.was.Attempt = id, b.state, b.holder, b.attempt
			rows.builds[id], b.retryOn = &one, nil
			return nil
		})
		return err
	})
}

// relate sets how the build and the worker of e relate to each other, by the locked rows.
func (rows *ends) relate(e *ending) {
	e.st, e.seq, e.was = relation{}, 0, store.Build{}
	if b := rows.builds[e.BuildID]; b != nil {
		e.st, e.seq, e.was = b.relation, b.seq, b.was
	}
	e.st.workerKnown = rows.workers[e.WorkerID] != nil
}

// end notes that e's build has ended, or its attempt. It frees a slot of the worker if the worker
// held the build. Only the end of an attempt that it still held counts for its health, and not one
// after which the build wants to be tried again.
func (w *ender) end(rule store.QuarantineRule, e *ending) {
	freed := 0
	if e.st.state.Held() {
		freed = 1
	}
	w.held -= freed
	w.seen = true
	if e.again {
		return
	}
	if e.st.holder == w.id {
		w.ended(rule, e.Result)
	}
	if e.Success {
		w.counted[0]++
	} else {
		w.counted[1]++
	}
}

// ended updates the worker's health for the end of an attempt.
func (w *ender) ended(rule store.QuarantineRule, r store.Result) {
	resting := w.health.Resting
	if rest := max(w.health.Ended(rule, r), w.suspect.Ended(r, resting)); rest > 0 {
		w.rest, w.health.Resting = rest, true
	}
}

// write queues the statements that write what was decided.
func (rows *ends) write(batch *pgx.Batch) {
	if n := len(rows.recorded); n > 0 {
		builds, workers, successes := make([]int64, n), make([]string, n), make([]bool, n)
		messages, lines, ended, suspects := make([]*string, n), make([]string, n), make([]string, n), make([]bool, n)
		var owners []int64
		files := fileColumns{}
		for i, e := range rows.recorded {
			builds[i], workers[i], successes[i], lines[i] = e.seq, e.WorkerID, e.Success, "Build completed successfully"
			if e.Success {
				owners = append(owners, e.seq)
				files.add(store.ResultFile, *e.File)
			} else {
				messages[i], lines[i], ended[i], suspects[i] = &e.ErrorMessage, failureLine(e.ErrorMessage), string(e.Ended), rows.workers[e.WorkerID].suspect.Suspect
			}
		}
		batch.Queue(sqlEndBuilds, builds, workers, successes, messages, lines, ended, suspects,
			owners, files.kinds, files.names, files.sizes, files.digests, files.locations, files.objects, files.due)
	}
	if len(rows.again) > 0 {
		rows.writeAgain(batch)
	}
	if n := len(rows.written); n > 0 {
		ids, held, done, lost := make([]string, n), make([]int, n), make([]int, n), make([]int, n)
		attempts, quarantines, backoffs, rests, seen := make([]string, n), make([]string, n), make([]int, n), make([]time.Duration, n), make([]bool, n)
		suspects, suspectRests, trials := make([]bool, n), make([]int, n), make([]int, n)
		for i, w := range rows.written {
			ids[i], held[i], done[i], lost[i] = w.id, w.held, w.counted[0], w.counted[1]
			attempts[i], quarantines[i], backoffs[i], rests[i], seen[i] = w.health.Attempts, w.health.Quarantine, w.health.Backoffs, w.rest, w.seen
			suspects[i], suspectRests[i], trials[i] = w.suspect.Suspect, w.suspect.Rests, w.suspect.Trials
		}
		batch.Queue(sqlEndWorkers, ids, held, done, lost, attempts, quarantines, backoffs, rests, seen, suspects, suspectRests, trials)
	}
	for _, w := range rows.written {
		if !w.seen && w.rest > 0 { // other controllers remember that it is able
			batch.Queue(sqlNotify, fmt.Sprint("worker:changed ", w.number))
		}
	}
}

// recordTogether records results in one transaction.
func (b *Builds) recordTogether(some []*ending) error {
	return together("result batch", some, func(e *ending) trace.SpanContext { return e.request }, func(ctx context.Context) error {
		return b.recordEnds(ctx, b.db.write("recording results"), some)
	})
}

// recordEnds records results of different builds in one transaction. It leaves those alone
// that need a transaction of their own, unless there is only one and it is marked alone.
func (b *Builds) recordEnds(ctx context.Context, op operation, some []*ending) error {
	var rows ends
	place := op.once(func() error { return nil })
	enders, locked, wait := sqlTryEnders, sqlTryEnds, len(some) == 1 && some[0].alone
	if wait {
		enders, locked = sqlLockEnders, sqlLockEnds
	}
	return op.trips(ctx, func(batch *pgx.Batch) {
		rows = ends{}
		rows.lock(batch, some, enders, locked)
	}, func(ctx context.Context, c *pgx.Conn) error {
		accepted := make([]*ending, 0, len(some))
		for _, e := range some {
			e.blamed, e.repeat, e.again, e.err = nil, false, false, nil
			rows.relate(e)
			if e.alone = !wait && (!e.st.buildKnown || !e.st.workerKnown || e.st.retry && e.Success); e.alone {
				continue
			}
			if e.repeat, e.err = e.st.result(e.Result); !e.repeat && e.err == nil {
				accepted = append(accepted, e)
			}
		}
		if wait && len(accepted) > 0 && some[0].Success && some[0].st.retry && b.cfg.Quarantine.Faults > 0 {
			var err error
			if some[0].blamed, err = b.blame(ctx, c, some[0]); err != nil {
				return fmt.Errorf("judging the worker on which the build failed before: %w", err)
			}
		}
		if slices.ContainsFunc(accepted, func(e *ending) bool { return len(e.files) > 0 }) {
			_ = place() // the transaction does not run again
			b.place(ctx, accepted)
		}
		b.decideEnds(&rows, accepted)
		return nil
	}, rows.write)
}

// decideEnds decides what the accepted results change whose files have their names. Those of
// one worker are decided one after the other.
func (b *Builds) decideEnds(rows *ends, accepted []*ending) {
	for _, e := range accepted {
		if e.err != nil {
			continue
		}
		w := rows.workers[e.WorkerID]
		if !w.seen {
			rows.written = append(rows.written, w)
		}
		e.again = e.retries(b.cfg.MaxAttempts)
		if w.end(b.cfg.Quarantine, e); e.again {
			rows.again = append(rows.again, e)
		} else {
			rows.recorded = append(rows.recorded, e)
		}
		if e.blamed != nil {
			rows.written = append(rows.written, e.blamed)
		}
	}
}

// slowRename is how long each file of a transaction may take for the next results to share one.
const slowRename = 100 * time.Millisecond

// filesAtOnce is how many files of a transaction are made durable at once.
const filesAtOnce = 8

// place gives the files of accepted results their names and makes them durable. If that
// fails, the result is refused and the others are not. It waits for all, because a rename that
// ends after the locks were released could replace the file of a newer attempt. For the same
// reason it begins none after ctx, which ends before the database releases the locks of a
// process that stood still. The clock says that, because the timer of ctx may be late then.
//
// A part of a batch that the database refused for another result's data runs again with files
// that have their names. Nobody else at this controller can have replaced them; another one that
// shares the directory could, if its own transaction failed meanwhile.
func (b *Builds) place(ctx context.Context, accepted []*ending) {
	deadline, _ := ctx.Deadline()
	for _, e := range accepted {
		begun := time.Now()
		for _, f := range e.files {
			switch {
			case e.err != nil:
			case time.Now().After(deadline):
				e.err = unavailable(errSlow)
			default:
				e.err = f.Rename()
			}
		}
		e.took = time.Since(begun)
	}
	var wg sync.WaitGroup
	turn := make(chan struct{}, filesAtOnce)
	for _, e := range accepted {
		if len(e.files) == 0 || e.err != nil {
			continue
		}
		turn <- struct{}{}
		wg.Go(func() {
			defer func() {
				if v := recover(); v != nil { // nobody else would
					e.err = fmt.Errorf("committing a result: panic: %v\n%s", v, debug.Stack())
				}
				<-turn
			}()
			begun := time.Now()
			e.err = commitFiles(trace.ContextWithSpanContext(ctx, e.request), e.files)
			e.took += time.Since(begun)
		})
	}
	wg.Wait()
	b.slowDisk.Store(slices.ContainsFunc(accepted, func(e *ending) bool { return e.took > slowRename }))
}

// sole lets one caller at a time have a key. The zero value is ready.
type sole struct {
	mu    sync.Mutex // guards what follows
	taken map[string]chan struct{}
}

// take waits until nobody has key, and returns the function that gives it back. Error: the
// cause of ctx.
func (s *sole) take(ctx context.Context, key string) (free func(), err error) {
	for {
		s.mu.Lock()
		others := s.taken[key]
		if others == nil {
			own := make(chan struct{})
			if s.taken == nil {
				s.taken = map[string]chan struct{}{}
			}
			s.taken[key] = own
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.taken, key)
				s.mu.Unlock()
				close(own)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-others:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
