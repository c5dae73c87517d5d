package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// limitKey is the advisory lock of the queue limit: only one controller counts at a
// time.
const limitKey = 0x74616b74_6c696d74 // "taktlimt"

// Submit adds a build to the queue. commit is called before the build is committed, to
// give its files their names: at once, or for a submission with an idempotency key once
// the key is known to be new. If Submit fails, the caller removes the files. Errors:
// *store.Repeated, in which case commit was not called; QueueFull; Conflict if the id
// is in use; RetryWaiting; Unavailable, wrapping store.ErrOutcomeUnknown, when the
// build and its files may have been stored.
func (b *Builds) Submit(ctx context.Context, s store.Submission, commit func() error) (build store.Build, err error) {
	if commit == nil {
		commit = func() error { return nil }
	}
	op := b.db.write("submitting build " + s.ID)
	if err := repeated(ctx, op, s.Once); err != nil { // first, because a repeat is answered even if the queue is full
		return store.Build{}, err
	}
	var position int64
	if b.db.pending.reserve(b.cfg.QueueLimit) {
		build, position, err = b.submitUncounted(ctx, op, s, commit)
	} else {
		build, position, err = b.submitCounted(ctx, op, s, commit)
	}
	if err != nil {
		return store.Build{}, err
	}
	b.db.head.lower(position) // its priority may put it below the marks
	return build, nil
}

// submitUncounted adds a build without a count, because the limit is far away and room
// is reserved. Without an idempotency key this is one statement and one round trip.
func (b *Builds) submitUncounted(
	ctx context.Context, op operation, s store.Submission, commit func() error,
) (build store.Build, position int64, err error) {
	defer func() { b.db.pending.release(err == nil || errors.Is(err, store.ErrOutcomeUnknown)) }()
	if s.Once != nil || s.RetryOf != "" {
		return submitIn(ctx, op, s, commit, func(context.Context, pgx.Tx) error { return nil })
	}
	if err := commit(); err != nil {
		return store.Build{}, 0, op.failure(err)
	}
	err = op.run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		build, position, err = insertBuild(ctx, c, s)
		return err
	})
	return build, position, err
}

// submitCounted adds a build if the table has room for it. This controller adds no
// other build meanwhile, so the count is exact.
func (b *Builds) submitCounted(ctx context.Context, op operation, s store.Submission, commit func() error) (store.Build, int64, error) {
	b.db.pending.adding.Lock()
	defer b.db.pending.adding.Unlock()
	return submitIn(ctx, op, s, commit, b.makeRoom)
}

// submitIn adds a build in a transaction that begins with first.
func submitIn(
	ctx context.Context, op operation, s store.Submission, commit func() error, first func(context.Context, pgx.Tx) error,
) (build store.Build, position int64, err error) {
	err = op.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := first(ctx, tx); err != nil {
			return err
		}
		if s.RetryOf != "" {
			if err := soleRetry(ctx, tx, s.RetryOf); err != nil {
				return err
			}
		}
		if build, position, err = insertBuild(ctx, tx, s); err != nil {
			return err
		}
		if err := takeKey(ctx, tx, s.Once, build); err != nil {
			return err
		}
		return commit()
	})
	return build, position, err
}

const (
	// sqlHoldRetries serializes retries of the same original build.
	sqlHoldRetries = `SELECT pg_advisory_xact_lock(hashtextextended('takt retry ' || coalesce(retry_root, seq), 0))
FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)`

	sqlRetryWaits = `SELECT EXISTS (SELECT FROM builds r WHERE r.state = 'pending' AND r.retry_root = (
	SELECT coalesce(retry_root, seq) FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1)))`
)

// soleRetry refuses a retry while another retry of the same original build is pending,
// also through retries of retries. Otherwise one token could queue any number of
// builds.
func soleRetry(ctx context.Context, tx pgx.Tx, of string) error {
	if _, err := tx.Exec(ctx, sqlHoldRetries, of); err != nil {
		return err
	}
	return retryWaits(ctx, tx, of)
}

func retryWaits(ctx context.Context, q querier, of string) error {
	var waits bool
	if err := q.QueryRow(ctx, sqlRetryWaits, of).Scan(&waits); err != nil || !waits {
		return err
	}
	return store.NewError(store.RetryWaiting, "A retry of this build is waiting already")
}

// RetryWaits returns RetryWaiting if a retry of the build would be refused now.
func (b *Builds) RetryWaits(ctx context.Context, id string) error {
	return b.db.read("looking for a retry of build "+id).run(ctx, func(ctx context.Context, c *pgx.Conn) error { return retryWaits(ctx, c, id) })
}

const sqlHoldLimit = `SELECT pg_advisory_xact_lock($1)`

// sqlCountPending counts up to $1 pending builds.
const sqlCountPending = `SELECT count(*) FROM (SELECT 1 FROM builds WHERE state = 'pending' LIMIT $1) p`

// makeRoom counts under the lock and refuses if more than the limit are pending.
func (b *Builds) makeRoom(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, sqlHoldLimit, int64(limitKey)); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRow(ctx, sqlCountPending, b.cfg.QueueLimit+1).Scan(&n); err != nil {
		return err
	}
	b.db.pending.counted(n + 1) // includes this build; one too many if its insert fails
	if n > b.cfg.QueueLimit {
		return &store.Error{
			Code:       store.QueueFull,
			Message:    "Build queue full, try again later",
			RetryAfter: queueFullRetry,
		}
	}
	return nil
}

// queueFullRetry is how long a refused submitter should wait.
const queueFullRetry = 5 * time.Second

// sqlInsertBuild adds a build, its files, its labels (NULL for none) and its first log
// line, and notifies every controller. It also writes a line to the log of the build
// that this one retries (@retried, "" for none) and locks that build for the reason
// given at sqlAppendLogs.
const sqlInsertBuild = `
WITH b AS (
	INSERT INTO builds (id, platform, priority, token_hash, has_certs, retry_root)
	VALUES (@id, @platform, @priority, @token, @has_certs,
		(SELECT coalesce(retry_root, seq) FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = @retried)))
	RETURNING seq, submitted_at, position
), n AS (
	INSERT INTO build_ids (id, seq) SELECT @id, seq FROM b
), f AS (
	INSERT INTO build_files (build, kind, name, size, sha256, location, object, copy_due)
	SELECT b.seq, f.* FROM b, unnest(@kinds::text[], @names::text[], @sizes::bigint[], @digests::bytea[],
		@locations::text[], @objects::text[], @due::timestamptz[]) AS f
), t AS (
	INSERT INTO build_labels (build, labels) SELECT seq, @labels FROM b WHERE @labels::jsonb IS NOT NULL
), l AS (
	INSERT INTO build_logs (build, message) SELECT seq, @line FROM b
), o AS MATERIALIZED (
	SELECT seq FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = @retried) FOR NO KEY UPDATE
), r AS (
	INSERT INTO build_logs (build, message) SELECT seq, 'Retried as build ' || @id::text FROM o
)
SELECT submitted_at, position, pg_notify('takt', 'job:available ' || @platform) FROM b`

func insertBuild(ctx context.Context, q querier, s store.Submission) (build store.Build, position int64, err error) {
	build = store.Build{
		ID: s.ID, Platform: s.Platform, State: store.Pending, Priority: s.Priority,
		Labels: s.Labels, TokenHash: s.TokenHash, Source: &s.Source, Certs: s.Certs,
	}
	var labels any
	if len(s.Labels) > 0 {
		labels = s.Labels
	}
	files := fileColumns{}
	files.add(store.SourceFile, s.Source)
	if s.Certs != nil {
		files.add(store.CertsFile, *s.Certs)
	}
	line := "Build submitted"
	if s.RetryOf != "" {
		line += " (retry of " + s.RetryOf + ")"
	}
	var at time.Time
	err = q.QueryRow(ctx, sqlInsertBuild, pgx.NamedArgs{
		"id": s.ID, "platform": string(s.Platform), "priority": s.Priority, "token": s.TokenHash[:], "has_certs": s.Certs != nil,
		"kinds": files.kinds, "names": files.names, "sizes": files.sizes, "digests": files.digests,
		"locations": files.locations, "objects": files.objects, "due": files.due, "labels": labels, "line": line, "retried": s.RetryOf,
	}).Scan(&at, &position, nil)
	if err != nil {
		return store.Build{}, 0, err
	}
	build.SubmittedAt, build.UpdatedAt = at.UTC(), at.UTC()
	return build, position, nil
}
