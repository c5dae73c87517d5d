package postgres

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/batching"
)

// BuildsConfig configures Builds.
type BuildsConfig struct {
	// QueueLimit is the most builds that may be pending when another one is submitted.
	// Defaults to store.DefaultQueueLimit.
	QueueLimit int
	// MaxAttempts is how many attempts a build has that was submitted without a number, as far as
	// it is tried again by exit code. Defaults to 3.
	MaxAttempts int
	// Quarantine decides which workers are quarantined.
	Quarantine store.QuarantineRule
	// Quarantined, if set, is called after Finish has quarantined a worker other than the
	// one that sent the result, because a build that had failed on it was completed there.
	Quarantined func(worker, why string, status store.WorkerStatus)
}

// Builds keeps builds, their files and their logs. Safe for concurrent use.
type Builds struct {
	db        *DB
	cfg       BuildsConfig
	additions *batching.Committer[*addition]
	endings   *batching.Committer[*ending]
	lookups   *batching.Committer[*lookup]
	ending    sole        // the builds whose results are being recorded
	slowDisk  atomic.Bool // results are recorded alone
	beats     *batching.Committer[*beat]
	heard     sole // the builds whose heartbeats are being recorded
	// beating is sqlRecordBeat. beatingAlone waits for locks, in the order of all that lock
	// several rows: workers, then builds.
	beating, beatingAlone numbered
}

// NewBuilds returns the builds of db.
func NewBuilds(db *DB, cfg BuildsConfig) *Builds {
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = store.DefaultQueueLimit
	}
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, store.DefaultAttempts)
	b := &Builds{db: db, cfg: cfg, beating: number(sqlRecordBeat), beatingAlone: number(strings.ReplaceAll(sqlRecordBeat, " SKIP LOCKED", ""))}
	b.additions = batching.New(batching.Config[*addition]{Commit: b.addTogether, Refused: isDataError, Pace: additionsAtOnce})
	b.lookups = batching.New(batching.Config[*lookup]{Commit: b.findTogether, Refused: isDataError, Pace: lookupsAtOnce})
	b.beats = batching.New(batching.Config[*beat]{Commit: b.beatTogether, Refused: isDataError, Pace: beatsAtOnce})
	b.endings = batching.New(batching.Config[*ending]{Commit: b.recordTogether, Refused: isDataError, Pace: endingsAtOnce})
	return b
}

// errNoBuild is the error for an unknown build id.
func errNoBuild() error { return store.NewError(store.NotFound, "Build not found") }

// buildColumns are the columns that scanBuilds reads: a row for each file of a build b, or
// one row without a file.
const buildColumns = `b.id, b.seq, b.platform, b.state, b.priority, coalesce(b.worker_id, ''), coalesce(b.last_worker_id, ''),
	b.attempt, b.token_hash, b.submitted_at, CASE b.state WHEN 'pending' THEN ` + waitingSince + ` END, b.started_at, b.last_seen_at, b.completed_at, b.updated_at,
	coalesce(b.error_message, ''), coalesce(d.name, ''), (SELECT labels FROM build_labels WHERE build = b.seq), coalesce(b.submitter, ''),
	coalesce(` + homeClass + `, 0), (SELECT require FROM build_classes WHERE id = ` + homeClass + `), (SELECT prefer FROM build_labels WHERE build = b.seq),
	` + inputsColumn + `, coalesce(b.ended, ''), coalesce(b.ended_by, ''), coalesce(b.ended_why, ''), coalesce(b.suspect, false),
	CASE WHEN b.retry_root IS NOT NULL THEN coalesce((SELECT p.id FROM builds p WHERE p.seq = coalesce(b.retry_of, b.retry_root)), '') ELSE '' END,
	coalesce(f.kind, ''), coalesce(f.name, ''), coalesce(f.size, 0), f.sha256,
	coalesce(f.location, ''), coalesce(f.object, ''), f.copy_due IS NOT NULL, `

// waitingSince is since when a pending build b waits. It is a fallback for builds that the release
// before made pending again.
const waitingSince = `coalesce(b.waiting_since, CASE b.attempt WHEN 0 THEN b.submitted_at ELSE b.updated_at END)`

// buildRetries are the retries of a build b, NULL for none.
const buildRetries = `nullif(ARRAY(SELECT r.id FROM builds r WHERE r.retry_root IS NOT NULL AND coalesce(r.retry_of, r.retry_root) = b.seq ORDER BY r.seq LIMIT 100), '{}')`

// buildJoins joins the tables that buildColumns reads besides builds b.
const buildJoins = `
LEFT JOIN worker_details d ON d.worker_id = b.worker_id
LEFT JOIN build_files f ON f.build = b.seq`

const sqlFindBuilds = `/* find_builds */ SELECT ` + buildColumns + buildRetries + `
FROM builds b` + buildJoins + ` WHERE b.seq = ANY (ARRAY(SELECT seq FROM build_ids WHERE id = ANY ($1))) ORDER BY b.seq`

// Find returns a build with its files and the hash of its token. Calls at the same time share
// a statement. Error: NotFound.
func (b *Builds) Find(ctx context.Context, id string) (store.Build, error) {
	op, l := b.db.read("finding build "+id), &lookup{id: id}
	err := b.lookups.Do(ctx, l)
	switch {
	case errors.Is(err, batching.ErrUnknown):
		err = cmp.Or(context.Cause(ctx), err) // there is no outcome
	case err == nil && l.build == nil:
		err = errNoBuild()
	case err == nil:
		return *l.build, nil
	}
	return store.Build{}, op.shared(ctx, err)
}

// lookupTimeout bounds one try of a look-up.
const lookupTimeout = 4 * time.Second

// lookup is a call of Find. build is nil if there is none.
type lookup struct {
	id    string
	build *store.Build
}

// lookupsAtOnce is how statements find builds: each the builds of many requests.
var lookupsAtOnce = batching.Pace{Parallel: 2, Most: 96, Few: 4, Alone: 96, Linger: 5 * time.Millisecond}

// findTogether reads builds in one statement, not with a caller's context, because all share
// it.
func (b *Builds) findTogether(some []*lookup) error {
	ids := make([]string, len(some))
	for i, l := range some {
		ids[i] = l.id
	}
	var found []store.Build
	var err error
	op := b.db.read("finding builds")
	op.timeout = lookupTimeout
	for range 2 { // again, because a connection that has died must not fail many requests
		err = op.run(context.Background(), func(ctx context.Context, c *pgx.Conn) (err error) { //nolint:forbidigo // all callers share it
			found, err = findBuilds(ctx, c, ids)
			return err
		})
		if !store.IsOutage(err) {
			break
		}
	}
	for _, l := range some {
		if i := slices.IndexFunc(found, func(b store.Build) bool { return b.ID == l.id }); i >= 0 {
			l.build = &found[i]
		}
	}
	return err
}

func findBuilds(ctx context.Context, q querier, ids []string) ([]store.Build, error) {
	rows, _ := q.Query(ctx, sqlFindBuilds, ids) // its error is that of the rows
	return scanBuilds(rows)
}

const (
	// buildFilter selects builds b by everything but their states. With @bounded it reads only the
	// last @searched builds. Labels are a scalar subquery, which is never hashed: that would read
	// all labels.
	buildFilter = `(@platform::text = '' OR platform = @platform) AND (@worker::text = '' OR worker_id = @worker)
	AND (@submitter::text = '' OR submitter = @submitter) AND (NOT @suspect::bool OR suspect)
	AND seq < @after AND seq >= @until
	AND (@since::timestamptz IS NULL OR submitted_at >= @since) AND (@before::timestamptz IS NULL OR submitted_at < @before)
	AND seq > CASE WHEN @bounded::bool THEN (SELECT max(seq) FROM builds) - @searched::bigint ELSE 0 END
	AND (@labels::jsonb = '{}' OR (SELECT l.labels @> @labels FROM build_labels l WHERE l.build = b.seq))
	AND (@text::text = '' OR strpos(lower(id), @text) > 0 OR strpos(lower(error_message), @text) > 0
		OR seq IN (SELECT build FROM build_labels WHERE @text <> '' AND build > (SELECT max(seq) FROM builds) - @searched::bigint AND strpos(lower(labels::text), @text) > 0))`

	// buildPage is the end of a statement that lists builds.
	buildPage = ` ORDER BY seq DESC OFFSET @skip::int LIMIT @limit::int) b` + buildJoins + ` ORDER BY b.seq DESC`

	listBuilds = `SELECT ` + buildColumns + `NULL::text[] FROM (SELECT b.* FROM `

	// The statements differ in the index that they read: builds that are held, that are
	// pending, and that ended without a result each have a small one.
	sqlListBuilds  = `/* list_builds */ ` + listBuilds + `builds b WHERE (@states::text[] IS NULL OR state = ANY (@states)) AND ` + buildFilter + buildPage
	sqlListHeld    = `/* list_held */ ` + listBuilds + `builds b WHERE state IN ('assigned', 'building') AND state = ANY (@states::text[]) AND ` + buildFilter + buildPage
	sqlListPending = `/* list_pending */ ` + listBuilds + `builds b WHERE state = 'pending' AND @states::text[] IS NOT NULL AND ` + buildFilter + buildPage
	sqlListEnded   = `/* list_ended */ ` + listBuilds + `builds b WHERE state IN ('failed', 'cancelled') AND state = ANY (@states::text[]) AND ` + buildFilter + buildPage
	// sqlListUnretried reads all retries among the last @searched builds first.
	sqlListUnretried = `/* list_unretried */ WITH retried AS MATERIALIZED (
	SELECT retry_root, max(seq) AS last FROM builds WHERE retry_root IS NOT NULL AND seq > (SELECT max(seq) FROM builds) - @searched::bigint GROUP BY retry_root
) ` + listBuilds + `builds b WHERE state IN ('failed', 'cancelled') AND state = ANY (@states::text[])
	AND NOT EXISTS (SELECT FROM retried r WHERE r.retry_root = coalesce(b.retry_root, b.seq) AND r.last > b.seq) AND ` + buildFilter + buildPage
	// sqlListLabelled reads labels, newest first, until the page is full. The statements above look
	// up the labels of each build that they read.
	sqlListLabelled = `/* list_labelled */ ` + listBuilds + `build_labels l JOIN builds b ON b.seq = l.build
	WHERE l.labels @> @labels AND l.build < @after AND (@states::text[] IS NULL OR state = ANY (@states)) AND ` + buildFilter + buildPage

	sqlCountList = `/* count_list */ SELECT count(*)::int FROM (
	SELECT FROM (SELECT * FROM builds ORDER BY seq DESC LIMIT @searched) b WHERE (@states::text[] IS NULL OR state = ANY (@states)) AND ` + buildFilter + ` LIMIT @counted
) c`
)

// filterArgs returns the arguments of the statements that list and count builds.
func filterArgs(f store.BuildFilter, p store.Page) (pgx.NamedArgs, error) {
	args, err := numberedList{"builds", true}.args(p)
	args["states"], args["platform"], args["worker"] = f.States, string(f.Platform), f.WorkerID
	args["since"], args["before"] = orNull(f.Since), orNull(f.Until)
	args["text"], args["searched"], args["counted"] = strings.ToLower(store.Text(f.Text)), store.MaxSearched, store.MaxCounted+1
	args["submitter"], args["labels"], args["suspect"] = store.Text(f.Submitter), store.Labels{}, f.Suspect
	if f.Labels != nil {
		args["labels"] = f.Labels
	}
	few := only(f.States, store.Pending) || only(f.States, store.Assigned, store.Building) // as the queue and the workers' slots limit
	args["bounded"] = f.Text != "" || f.Unretried || f.Submitter != "" && !few
	return args, err
}

// CountBuilds returns how many of the last store.MaxSearched builds match f, and
// store.MaxCounted+1 if there are more than store.MaxCounted.
func (d *Dashboard) CountBuilds(ctx context.Context, f store.BuildFilter) (int, error) {
	args, _ := filterArgs(f, store.Page{}) // no cursor is wrong
	return valueOf[int](ctx, d.db.read("counting builds for a page"), sqlCountList, args)
}

// List returns a page of the builds that match f, newest first.
func (b *Builds) List(ctx context.Context, f store.BuildFilter, p store.Page) (builds []store.Build, next store.Cursor, err error) {
	query := sqlListBuilds
	switch {
	case only(f.States, store.Assigned, store.Building):
		query = sqlListHeld
	case only(f.States, store.Pending):
		query = sqlListPending
	case f.Unretried:
		query = sqlListUnretried
	case only(f.States, store.Failed, store.Cancelled):
		query = sqlListEnded
	case len(f.Labels) > 0:
		query = sqlListLabelled
	}
	args, err := filterArgs(f, p)
	if err != nil {
		return nil, "", err
	}
	err = b.db.read("listing builds").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, query, pageArgs(p, args)) // its error is that of the rows
		builds, err = scanBuilds(rows)
		return err
	})
	builds, next = cut(builds, p, func(b store.Build) store.Cursor { return numberedList{"builds", true}.at(b.Seq) })
	return builds, next, err
}

// orNull returns nil for the zero time.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// only reports whether states is not empty and holds nothing but allowed.
func only(states []store.BuildState, allowed ...store.BuildState) bool {
	return len(states) > 0 && !slices.ContainsFunc(states, func(s store.BuildState) bool { return !slices.Contains(allowed, s) })
}

const sqlCountBuilds = `/* count_builds */ SELECT count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'assigned'),
	count(*) FILTER (WHERE state = 'building')
FROM (SELECT state FROM builds WHERE state = 'pending' UNION ALL SELECT state FROM builds WHERE state IN ('assigned', 'building')) b`

// Counts returns how many builds are pending, assigned and building.
func (b *Builds) Counts(ctx context.Context) (store.Counts, error) {
	return rowOf(ctx, b.db.read("counting builds"), nil, pgx.RowToStructByPos[store.Counts], sqlCountBuilds)
}

// scanBuilds reads rows of buildColumns, in which the rows of a build follow each other.
func scanBuilds(rows pgx.Rows) ([]store.Build, error) {
	defer rows.Close()
	var builds []store.Build
	for rows.Next() {
		var b store.Build
		var token, digest []byte
		var file store.File
		var kind store.FileKind
		err := rows.Scan(&b.ID, &b.Seq, &b.Platform, &b.State, &b.Priority, &b.WorkerID, &b.LastWorkerID,
			&b.Attempt, &token, &b.SubmittedAt, &b.WaitingSince, &b.StartedAt, &b.LastSeenAt, &b.CompletedAt, &b.UpdatedAt,
			&b.ErrorMessage, &b.WorkerName, &b.Labels, &b.Submitter, &b.ClassID, &b.Require, &b.Prefer, &b.Inputs,
			&b.Ended, &b.EndedBy, &b.EndedWhy, &b.Suspect, &b.RetryOf, &kind, &file.Name, &file.Size, &digest, &file.Location, &file.Object, &file.CopyPending, &b.Retries)
		if err != nil {
			return nil, err
		}
		if n := len(builds); n == 0 || builds[n-1].ID != b.ID {
			copy(b.TokenHash[:], token)
			builds = append(builds, b)
		}
		copy(file.SHA256[:], digest)
		setFile(&builds[len(builds)-1], kind, file)
	}
	return builds, rows.Err()
}

// setFile sets the file of a kind. It ignores unknown kinds and the empty kind.
func setFile(b *store.Build, kind store.FileKind, file store.File) {
	switch kind {
	case store.SourceFile:
		b.Source = &file
	case store.CertsFile:
		b.Certs = &file
	case store.ResultFile:
		b.Result = &file
	}
}
