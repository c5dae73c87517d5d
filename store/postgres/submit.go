package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// limitKey is the advisory lock of the queue limit. Submissions that do not count
// share it, those that count exclude all others: what they count is exact.
const limitKey = 0x74616b74_6c696d74 // "taktlimt"

// errNearLimit makes Submit start again, counting.
var errNearLimit = errors.New("the queue limit is near")

// Submit adds a build to the queue. place is called before the commit, to give
// the build's files their names; its error takes everything back. Errors:
// *store.Repeated, and then place was not called; QueueFull; Conflict if the id
// is in use; Unavailable, wrapping store.ErrOutcomeUnknown when the build and its
// files may stand.
func (b *Builds) Submit(ctx context.Context, s store.Submission, place func() error) (store.Build, error) {
	var build store.Build
	err := b.repeated(ctx, s.Once) // even when the queue is full by now
	if err == nil {
		build, err = b.submit(ctx, s, place, false)
	}
	if errors.Is(err, errNearLimit) {
		build, err = b.submit(ctx, s, place, true)
	}
	if err != nil {
		return store.Build{}, fmt.Errorf("submitting build %s: %w", s.ID, err)
	}
	return build, nil
}

func (b *Builds) submit(ctx context.Context, s store.Submission, place func() error, count bool) (build store.Build, err error) {
	reserved := false
	var where int64
	defer func() {
		// After a commit of unknown outcome the place stays taken.
		if reserved && err != nil && !errors.Is(err, store.ErrOutcomeUnknown) {
			b.db.pending.release()
		}
	}()
	err = b.db.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if count {
			if err := b.makeRoom(ctx, tx); err != nil {
				return err
			}
		} else {
			if _, err := tx.Exec(ctx, sqlShareLimit, int64(limitKey)); err != nil {
				return err
			}
			// Asked under the lock: whoever counted before has said what it found.
			if reserved = b.db.pending.reserve(b.cfg.QueueLimit); !reserved {
				return errNearLimit
			}
		}
		build, where, err = insertBuild(ctx, tx, s)
		if err == nil {
			err = takeKey(ctx, tx, s.Once, build)
		}
		if err != nil {
			return err
		}
		if place == nil {
			return nil
		}
		return place()
	})
	if err == nil {
		b.db.head.lower(where) // its priority may let it overtake
	}
	return build, err
}

const sqlShareLimit = `SELECT pg_advisory_xact_lock_shared($1)`

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
	b.db.pending.counted(n + 1) // with this one; too many by one if it fails
	if n > b.cfg.QueueLimit {
		return &store.Error{
			Code:       store.QueueFull,
			Message:    "Build queue full, try again later",
			RetryAfter: queueFullRetry,
		}
	}
	return nil
}

// queueFullRetry is what a refused submitter is told to wait.
const queueFullRetry = 5 * time.Second

// sqlInsertBuild adds a build, its files ($6 to $12), its labels ($13, NULL for
// none) and its first log line, and tells every controller's queue. The notice is
// sent at the commit.
const sqlInsertBuild = `
WITH b AS (
	INSERT INTO builds (id, platform, priority, token_hash, has_certs)
	VALUES ($1, $2, $3, $4, $5)
	RETURNING seq, submitted_at, position
), n AS (
	INSERT INTO build_ids (id, seq) SELECT $1, seq FROM b
), f AS (
	INSERT INTO build_files (build, kind, name, size, sha256, location, object, copy_due)
	SELECT b.seq, f.* FROM b, unnest($6::text[], $7::text[], $8::bigint[], $9::bytea[],
		$10::text[], $11::text[], $12::timestamptz[]) AS f
), t AS (
	INSERT INTO build_labels (build, labels) SELECT seq, $13 FROM b WHERE $13::jsonb IS NOT NULL
), l AS (
	INSERT INTO build_logs (build, message) SELECT seq, $14 FROM b
)
SELECT submitted_at, position, pg_notify('takt', 'job:available ' || $2) FROM b`

// sqlLogRetry says in the log of build $1 which one repeats it. It locks that
// build for the reason of sqlAppendLogs.
const sqlLogRetry = `
WITH b AS MATERIALIZED (
	SELECT seq FROM builds WHERE seq = (SELECT seq FROM build_ids WHERE id = $1) FOR NO KEY UPDATE
)
INSERT INTO build_logs (build, message) SELECT seq, 'Retried as build ' || $2::text FROM b`

func insertBuild(ctx context.Context, tx pgx.Tx, s store.Submission) (build store.Build, place int64, err error) {
	build = store.Build{
		ID: s.ID, Platform: s.Platform, State: store.Pending, Priority: s.Priority,
		Labels: s.Labels, TokenHash: s.TokenHash, Source: &s.Source, Certs: s.Certs,
	}
	var labels any
	if len(s.Labels) > 0 {
		labels = s.Labels
	}
	var f fileColumns
	f.add(store.SourceFile, s.Source)
	if s.Certs != nil {
		f.add(store.CertsFile, *s.Certs)
	}
	line := "Build submitted"
	if s.RetryOf != "" {
		line += " (retry of " + s.RetryOf + ")"
	}
	var at time.Time
	err = tx.QueryRow(ctx, sqlInsertBuild, s.ID, string(s.Platform), s.Priority, s.TokenHash[:],
		s.Certs != nil, f.kinds, f.names, f.sizes, f.digests, f.locations, f.objects, f.due, labels, line).Scan(&at, &place, nil)
	if err != nil {
		return store.Build{}, 0, err
	}
	if s.RetryOf != "" {
		if _, err := tx.Exec(ctx, sqlLogRetry, s.RetryOf, s.ID); err != nil {
			return store.Build{}, 0, fmt.Errorf("writing the log of build %s: %w", s.RetryOf, err)
		}
	}
	build.SubmittedAt, build.UpdatedAt = at.UTC(), at.UTC()
	return build, place, nil
}
