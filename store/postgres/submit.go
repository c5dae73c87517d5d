package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"takt/store"
	"takt/store/batching"
	"takt/store/tracing"
)

// limitKey is the advisory lock of the queue limit: only one controller counts at a
// time.
const limitKey = 0x74616b74_6c696d74 // "taktlimt"

// Submit adds a build to the queue and settles its files. They are committed first,
// because nothing else has the names of a new build's files, and a transaction that waits
// for a disk would hold up others. Errors: *store.Repeated; QueueFull; Conflict if the id
// is in use; KeyQueueFull; RetryWaiting; Unavailable, wrapping store.ErrOutcomeUnknown, when the build
// may have been stored.
func (b *Builds) Submit(ctx context.Context, s store.Submission, files ...store.Staged) (build store.Build, err error) {
	defer func() {
		if isCertain(err) {
			abortFiles(ctx, files)
		}
	}()
	op := b.db.write("submitting build " + s.ID)
	if err := repeated(ctx, op, s.Once); err != nil { // first, because a repeat is answered even if the queue is full
		return store.Build{}, err
	}
	if s.Refused != nil {
		return store.Build{}, op.failure(s.Refused)
	}
	require, err := s.Require.Need(s.Inputs)
	if err != nil {
		return store.Build{}, op.failure(err)
	}
	if gone(ctx) { // now it is certain that nothing was added
		return store.Build{}, op.failure(context.Cause(ctx))
	}
	if err := commitFiles(ctx, files); err != nil {
		return store.Build{}, op.failure(err)
	}
	class, err := b.db.classOf(ctx, s.Platform, require)
	if err != nil {
		return store.Build{}, op.failure(err)
	}
	a := &addition{Submission: s, class: class, unnumbered: class.ID == 0, request: trace.SpanContextFromContext(ctx)}
	if s.Once != nil || s.RetryOf != "" { // may wait for another submission, so it has a transaction of its own
		err = b.insert(ctx, op, []*addition{a})
	} else {
		err = op.shared(ctx, b.additions.Do(ctx, a))
	}
	if err == nil {
		err = op.failure(a.err)
	}
	if err != nil {
		return store.Build{}, err
	}
	b.db.head.lower(a.position) // its turn or its priority may put it below the marks
	b.db.classes.keep(a.class)
	b.db.classes.note(time.Now(), a.class)
	return a.build, nil
}

// addition is a submission that waits to be added or is being added.
type addition struct {
	store.Submission
	class store.Class
	// unnumbered is true if the class had no number before; a transaction that is rolled back
	// leaves it without one.
	unnumbered bool
	request    trace.SpanContext
	build      store.Build
	position   int64
	root       int64  // the first of the builds of which this one is a retry; 0: it is none
	parent     int64  // the one that it repeats
	last       string // the last worker of the build that it retries
	err        error  // QueueFull, KeyQueueFull, KeyClassesFull or Unprocessable, although others of the same transaction were added
}

// additionsAtOnce is how transactions add builds: each the builds of many submissions.
var additionsAtOnce = batching.Pace{Parallel: 2, Most: 96, Few: 4, Alone: 96, Linger: 5 * time.Millisecond, Return: time.Millisecond}

// addTogether adds builds in one transaction.
func (b *Builds) addTogether(some []*addition) error {
	return together("submit batch", some, func(a *addition) trace.SpanContext { return a.request }, func(ctx context.Context) error {
		return b.insert(ctx, b.db.write("adding builds"), some)
	})
}

// together does what several requests share, in a span of its own and not with a caller's context.
func together[T any](span string, some []T, request func(T) trace.SpanContext, do func(context.Context) error) error {
	requests := make([]trace.SpanContext, len(some))
	for i, s := range some {
		requests[i] = request(s)
	}
	ctx, begun := tracing.Together(context.Background(), span, requests) //nolint:forbidigo // all callers share it
	err := do(ctx)
	tracing.End(begun, err)
	return err
}

// insert adds builds in one transaction. It counts the queue unless the limit is far away and known
// workers take the builds. A count is exact as far as this controller is concerned: it adds no
// other build meanwhile. Other controllers that are far from the limit, as they last counted it,
// may add builds meanwhile, for hintAge at most.
func (b *Builds) insert(ctx context.Context, op operation, all []*addition) error {
	hint := &b.db.pending
	if b.db.known.takes(all) && hint.reserve(len(all), b.cfg.QueueLimit) {
		err := b.insertIn(ctx, op, all, false)
		hint.release(len(all), !isCertain(err))
		return err
	}
	hint.adding.Lock()
	defer hint.adding.Unlock()
	return b.insertIn(ctx, op, all, true)
}

// insertIn is insert's transaction. Builds for which there is no room get QueueFull.
func (b *Builds) insertIn(ctx context.Context, op operation, all []*addition, count bool) error {
	return op.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		for _, a := range all {
			if a.err = nil; a.unnumbered {
				a.class.ID = 0
			}
		}
		if count {
			if err := b.admit(ctx, tx, all); err != nil {
				return err
			}
		}
		refused := func(a *addition) bool { return a.err != nil }
		if err := limitKeys(ctx, tx, all); err != nil {
			return err
		}
		all := slices.DeleteFunc(slices.Clone(all), refused)
		if err := limitClasses(ctx, tx, all); err != nil {
			return err
		}
		if all = slices.DeleteFunc(all, refused); len(all) == 0 {
			return nil
		}
		for _, a := range all {
			if err := soleRetry(ctx, tx, a); err != nil {
				return err
			}
		}
		if err := numberClasses(ctx, tx, all); err != nil {
			return err
		}
		if err := insertBuilds(ctx, tx, all); err != nil {
			return err
		}
		if err := insertInputs(ctx, tx, all); err != nil {
			return err
		}
		for _, a := range all {
			if err := logRetry(ctx, tx, a); err != nil {
				return err
			}
			if err := takeKey(ctx, tx, a.Once, a.build); err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	// sqlHoldKeys returns those keys that have a limit. Until the end of the transaction no
	// other one counts or adds builds of theirs. It locks in the order of the names, because
	// two transactions may have the same ones.
	sqlHoldKeys = `/* hold_keys */ SELECT name, max_pending, pg_advisory_xact_lock(hashtextextended('takt key ' || name, 0))
FROM (SELECT name, max_pending FROM access_keys WHERE name = ANY ($1) AND max_pending > 0 ORDER BY name OFFSET 0) k`

	// sqlCountKeys counts after sqlHoldKeys, because a statement sees what was committed before
	// it began.
	sqlCountKeys = `/* count_keys */ SELECT (SELECT count(*) FROM (
	SELECT FROM builds WHERE state = 'pending' AND attempt >= 0 AND coalesce(submitter, '') = k.name LIMIT k.most
) p) FROM unnest($1::text[], $2::int[]) WITH ORDINALITY AS k(name, most, nr) ORDER BY nr`
)

// limitKeys refuses additions by which a key would have more builds pending than it may.
func limitKeys(ctx context.Context, tx pgx.Tx, all []*addition) error {
	var names []string
	for _, a := range all {
		if a.err == nil && a.Submitter != "" && !slices.Contains(names, a.Submitter) {
			names = append(names, a.Submitter)
		}
	}
	if names == nil {
		return nil
	}
	var name string
	var n int
	most := []int{}
	rows, _ := tx.Query(ctx, sqlHoldKeys, names) // its error is that of the rows
	names = names[:0]
	if _, err := pgx.ForEachRow(rows, []any{&name, &n, nil}, func() error {
		names, most = append(names, name), append(most, n)
		return nil
	}); err != nil || len(names) == 0 {
		return err
	}
	pending, err := collect(ctx, tx, pgx.RowTo[int], sqlCountKeys, names, most)
	if err != nil {
		return err
	}
	for _, a := range all {
		if i := slices.Index(names, a.Submitter); i < 0 || a.err != nil {
			continue
		} else if pending[i] >= most[i] {
			a.err = store.ErrKeyQueueFull(a.Submitter, most[i])
		} else {
			pending[i]++
		}
	}
	return nil
}

// sqlKeyRoom returns the limit of a key that has as many builds pending as it may.
const sqlKeyRoom = `/* key_room */ SELECT max_pending FROM access_keys k WHERE name = $1 AND max_pending > 0 AND max_pending <= (SELECT count(*) FROM (
	SELECT FROM builds WHERE state = 'pending' AND attempt >= 0 AND coalesce(submitter, '') = k.name LIMIT k.max_pending
) p)`

// KeyRoom returns KeyQueueFull if a submit by a key would be refused now. It counts without a
// lock, because Submit decides.
func (b *Builds) KeyRoom(ctx context.Context, key string) error {
	return b.db.read("counting the pending builds of key "+key).run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var most int
		err := c.QueryRow(ctx, sqlKeyRoom, key).Scan(&most)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		return store.ErrKeyQueueFull(key, most)
	})
}

const (
	// sqlHoldRetries serializes retries of the same original build.
	sqlHoldRetries = `/* hold_retries */ SELECT coalesce(retry_root, seq), seq, coalesce(worker_id, ''), pg_advisory_xact_lock(hashtextextended('takt retry ' || coalesce(retry_root, seq), 0))
FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)`

	sqlRetryWaits = `/* retry_waits */ SELECT coalesce(min(id), '') FROM builds WHERE state = 'pending' AND retry_root = (
	SELECT coalesce(retry_root, seq) FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1))`
)

// soleRetry refuses a retry while another retry of the same original build is pending,
// also through retries of retries. Otherwise one token could queue any number of
// builds.
func soleRetry(ctx context.Context, tx pgx.Tx, a *addition) error {
	if a.RetryOf == "" {
		return nil
	}
	err := tx.QueryRow(ctx, sqlHoldRetries, a.RetryOf).Scan(&a.root, &a.parent, &a.last, nil)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return retryWaits(ctx, tx, a.RetryOf)
}

func retryWaits(ctx context.Context, q querier, of string) error {
	var waits string
	if err := q.QueryRow(ctx, sqlRetryWaits, of).Scan(&waits); err != nil || waits == "" {
		return err
	}
	return &store.Error{Code: store.RetryWaiting, Message: "A retry of this build is waiting already", Details: waits}
}

// RetryWaits returns RetryWaiting if a retry of the build would be refused now.
func (b *Builds) RetryWaits(ctx context.Context, id string) error {
	return b.db.read("looking for a retry of build "+id).run(ctx, func(ctx context.Context, c *pgx.Conn) error { return retryWaits(ctx, c, id) })
}

// sqlInsertBuilds adds builds, their files, their labels (NULL for none) and their first
// log lines, and notifies every controller: first of the lowest position, because it may be
// below the marks there. Releases that know no queue:position ignore it. The builds of one
// submitter get positions one after another.
const sqlInsertBuilds = `/* insert_builds */
WITH s AS MATERIALIZED (
	SELECT * FROM unnest(@ids::text[], @platforms::text[], @priorities::int[], @tokens::bytea[], @certs::bool[], @labels::jsonb[], @retried::text[], @lines::text[],
		@classes::int[], @prefers::text[], @events::text[], @submitters::text[], @roots::bigint[], @parents::bigint[], @lasts::text[], @inputs::bool[], queue_positions(@platforms, @priorities, @submitters, @classes))
		WITH ORDINALITY AS s(id, platform, priority, token, certs, labels, retried, line, class, prefer, event, submitter, root, parent, last, inputs, position, nr)
), b AS (
	INSERT INTO builds (id, platform, class, priority, position, token_hash, has_certs, log_lines, submitter, retry_root, retry_of, last_worker_id, has_inputs)
	SELECT id, platform, class, priority, position, token, certs, 1, nullif(submitter, ''), nullif(root, 0), nullif(parent, 0), nullif(last, ''), inputs FROM s ORDER BY nr
	RETURNING seq, id, submitted_at, position
), n AS (
	INSERT INTO build_ids (id, seq) SELECT id, seq FROM b
), f AS (
	INSERT INTO build_files (build, kind, name, size, sha256, location, object, copy_due)
	SELECT b.seq, f.kind, f.name, f.size, f.digest, f.location, f.object, f.due
	FROM b JOIN unnest(@owners::text[], @kinds::text[], @names::text[], @sizes::bigint[], @digests::bytea[], @locations::text[], @objects::text[], @due::timestamptz[])
		AS f(id, kind, name, size, digest, location, object, due) USING (id)
), t AS (
	INSERT INTO build_labels (build, labels, prefer) SELECT b.seq, coalesce(s.labels, '{}'), s.prefer FROM b JOIN s USING (id)
	WHERE s.labels IS NOT NULL OR s.prefer IS NOT NULL
), l AS (
	INSERT INTO build_logs (build, number, message, kind, facts)
	SELECT b.seq, 1, s.line, 'submitted', CASE WHEN s.retried IS NOT NULL THEN jsonb_build_object('build', s.retried) END FROM b JOIN s USING (id)
), low AS MATERIALIZED (
	SELECT pg_notify('takt', 'queue:position ' || min(position)) FROM b
)
SELECT id, submitted_at, b.position, pg_backend_pid(), pg_notify('takt', 'job:available ' || event) FROM low CROSS JOIN b JOIN s USING (id)`

// sqlLogRetry writes a line to the log of the build $1, which build $3 retries.
const sqlLogRetry = `/* log_retry */
WITH o AS (
	UPDATE builds SET log_lines = log_lines + 1 WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) RETURNING seq, log_lines
)
INSERT INTO build_logs (build, number, message, kind, facts) SELECT seq, log_lines, $2, 'retried', jsonb_build_object('build', $3::text) FROM o`

func logRetry(ctx context.Context, tx pgx.Tx, a *addition) error {
	if a.RetryOf == "" {
		return nil
	}
	_, err := tx.Exec(ctx, sqlLogRetry, a.RetryOf, "Retried as build "+a.ID, a.ID)
	return err
}

// insertBuilds adds builds in one statement and sets their results.
func insertBuilds(ctx context.Context, q querier, all []*addition) error {
	n := len(all)
	ids, platforms, retried, lines, submitters := make([]string, n), make([]string, n), make([]*string, n), make([]string, n), make([]string, n)
	priorities, tokens, certs, labels := make([]int, n), make([][]byte, n), make([]bool, n), make([]any, n)
	classes, prefers, events, roots, parents, lasts := make([]int32, n), make([]*string, n), make([]string, n), make([]int64, n), make([]int64, n), make([]string, n)
	inputs := make([]bool, n)
	owners, files, byID := make([]string, 0, n), fileColumns{}, make(map[string]*addition, n)
	for i, a := range all {
		s := &a.Submission
		byID[s.ID], submitters[i], roots[i], parents[i], lasts[i] = a, s.Submitter, a.root, a.parent, a.last
		ids[i], platforms[i], priorities[i], tokens[i], certs[i] = s.ID, string(s.Platform), s.Priority, s.TokenHash[:], s.Certs != nil
		if classes[i], events[i] = a.class.ID, a.class.Event(); len(s.Prefer) > 0 {
			prefer := s.Prefer.String()
			prefers[i] = &prefer
		}
		if len(s.Labels) > 0 {
			labels[i] = s.Labels
		}
		inputs[i] = len(s.Labels) > 0 || !s.Inputs.Empty()
		if lines[i] = "Build submitted"; s.RetryOf != "" {
			retried[i], lines[i] = &s.RetryOf, lines[i]+" (retry of "+s.RetryOf+")"
		}
		owners = append(owners, s.ID)
		files.add(store.SourceFile, s.Source)
		if s.Certs != nil {
			owners = append(owners, s.ID)
			files.add(store.CertsFile, *s.Certs)
		}
	}
	rows, _ := q.Query(ctx, sqlInsertBuilds, pgx.NamedArgs{
		"ids": ids, "platforms": platforms, "priorities": priorities, "tokens": tokens, "certs": certs, "labels": labels,
		"retried": retried, "lines": lines, "classes": classes, "prefers": prefers, "events": events, "submitters": submitters, "roots": roots, "parents": parents, "lasts": lasts, "inputs": inputs,
		"owners": owners, "kinds": files.kinds, "names": files.names, "sizes": files.sizes, "digests": files.digests, "locations": files.locations, "objects": files.objects, "due": files.due,
	}) // its error is that of the rows
	var id string
	var at time.Time
	var position int64
	var sender uint32
	_, err := pgx.ForEachRow(rows, []any{&id, &at, &position, &sender, nil}, func() error {
		a := byID[id]
		s := &a.Submission
		a.position = position
		a.build = store.Build{
			ID: s.ID, Platform: s.Platform, State: store.Pending, LastWorkerID: a.last, Priority: s.Priority, Labels: s.Labels, Submitter: s.Submitter,
			ClassID: a.class.ID, Require: a.class.Require, Prefer: s.Prefer, Inputs: s.Inputs, TokenHash: s.TokenHash, Source: &s.Source, Certs: s.Certs, RetryOf: s.RetryOf,
			SubmittedAt: at.UTC(), WaitingSince: at.UTC(), UpdatedAt: at.UTC(), Sender: sender,
		}
		return nil
	})
	return err
}
