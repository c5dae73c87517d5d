package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
	"takt/store/batching"
)

// BuildsConfig configures Builds.
type BuildsConfig struct {
	// QueueLimit is how many builds may be pending when one more is submitted.
	// Defaults to 1000.
	QueueLimit int
	// Quarantine decides which workers are quarantined.
	Quarantine store.QuarantineRule
}

// Builds keeps builds, their files and their logs. Safe for concurrent use.
type Builds struct {
	db        *DB
	cfg       BuildsConfig
	additions *batching.Committer[*addition]
	beating   numbered
}

// NewBuilds returns the builds of db.
func NewBuilds(db *DB, cfg BuildsConfig) *Builds {
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = 1000
	}
	b := &Builds{db: db, cfg: cfg, beating: number(sqlRecordBeat)}
	b.additions = batching.New(batching.Config[*addition]{Commit: b.addTogether, Refused: isDataError, Pace: additionsAtOnce})
	return b
}

// errNoBuild is the answer for an unknown build id.
func errNoBuild() error { return store.NewError(store.NotFound, "Build not found") }

// buildColumns are what scanBuilds reads: one row for each file of a build b,
// or one without a file.
const buildColumns = `b.id, b.seq, b.platform, b.state, b.priority, coalesce(b.worker_id, ''), coalesce(b.last_worker_id, ''),
	b.attempt, b.token_hash, b.submitted_at, b.started_at, b.last_seen_at, b.completed_at, b.updated_at,
	coalesce(b.error_message, ''), coalesce(d.name, ''), (SELECT labels FROM build_labels WHERE build = b.seq),
	coalesce(f.kind, ''), coalesce(f.name, ''), coalesce(f.size, 0), f.sha256,
	coalesce(f.location, ''), coalesce(f.object, ''), f.copy_due IS NOT NULL`

// buildJoins are what buildColumns reads besides builds b.
const buildJoins = `
LEFT JOIN worker_details d ON d.worker_id = b.worker_id
LEFT JOIN build_files f ON f.build = b.seq`

const sqlFindBuild = `/* find_build */ SELECT ` + buildColumns + `
FROM builds b` + buildJoins + ` WHERE b.seq = (SELECT seq FROM build_ids WHERE id = $1)`

// Find returns a build with its files and the hash of its token. Error: NotFound.
func (b *Builds) Find(ctx context.Context, id string) (build store.Build, err error) {
	err = b.db.read("finding build "+id).run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		build, err = findBuild(ctx, c, id)
		return err
	})
	return build, err
}

func findBuild(ctx context.Context, q querier, id string) (store.Build, error) {
	rows, _ := q.Query(ctx, sqlFindBuild, id) // its error is that of the rows
	found, err := scanBuilds(rows)
	if err == nil && len(found) == 0 {
		err = errNoBuild()
	}
	return append(found, store.Build{})[0], err
}

// The lists differ in how much of the table they may read: builds that are not
// history have their own small indexes. $1 states, $2 platform, $3 worker, $4
// limit, $5 the last build of the page before; empty means all.
const (
	listFilter = `
	($1::text[] IS NULL OR state = ANY ($1)) AND ($2 = '' OR platform = $2) AND ($3 = '' OR worker_id = $3)
	AND ($5::bigint = 0 OR seq < $5) ORDER BY seq DESC LIMIT nullif($4, 0)`
	listFiles = `) b` + buildJoins + ` ORDER BY b.seq DESC`

	sqlListBuilds  = `/* list_builds */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE ` + listFilter + listFiles
	sqlListHeld    = `/* list_held */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE state IN ('assigned', 'building') AND ` + listFilter + listFiles
	sqlListPending = `/* list_pending */ SELECT ` + buildColumns + ` FROM (SELECT * FROM builds WHERE state = 'pending' AND ` + listFilter + listFiles
)

// List returns the builds that match f, newest first.
func (b *Builds) List(ctx context.Context, f store.BuildFilter) (builds []store.Build, err error) {
	query := sqlListBuilds
	switch {
	case only(f.States, store.Assigned, store.Building):
		query = sqlListHeld
	case only(f.States, store.Pending):
		query = sqlListPending
	}
	var states []string
	for _, s := range f.States {
		states = append(states, string(s))
	}
	err = b.db.read("listing builds").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, _ := c.Query(ctx, query, states, string(f.Platform), f.WorkerID, max(f.Limit, 0), f.Before) // its error is that of the rows
		builds, err = scanBuilds(rows)
		return err
	})
	return builds, err
}

// only reports whether states is not empty and holds nothing but allowed.
func only(states []store.BuildState, allowed ...store.BuildState) bool {
	return len(states) > 0 && !slices.ContainsFunc(states, func(s store.BuildState) bool { return !slices.Contains(allowed, s) })
}

const sqlCountBuilds = `/* count_builds */ SELECT count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'assigned'),
	count(*) FILTER (WHERE state = 'building')
FROM (SELECT state FROM builds WHERE state = 'pending' UNION ALL SELECT state FROM builds WHERE state IN ('assigned', 'building')) b`

// Counts returns how many builds are pending, assigned and building.
func (b *Builds) Counts(ctx context.Context) (n store.Counts, err error) {
	err = b.db.read("counting builds").scan(ctx, nil, []any{&n.Pending, &n.Assigned, &n.Building}, sqlCountBuilds)
	return n, err
}

// scanBuilds reads rows of buildColumns; rows of one build are neighbours.
func scanBuilds(rows pgx.Rows) ([]store.Build, error) {
	defer rows.Close()
	var builds []store.Build
	for rows.Next() {
		var b store.Build
		var token, digest []byte
		var file store.File
		var kind store.FileKind
		var started, seen, completed *time.Time
		err := rows.Scan(&b.ID, &b.Seq, &b.Platform, &b.State, &b.Priority, &b.WorkerID, &b.LastWorkerID,
			&b.Attempt, &token, &b.SubmittedAt, &started, &seen, &completed, &b.UpdatedAt,
			&b.ErrorMessage, &b.WorkerName, &b.Labels, &kind, &file.Name, &file.Size, &digest,
			&file.Location, &file.Object, &file.CopyPending)
		if err != nil {
			return nil, err
		}
		if n := len(builds); n == 0 || builds[n-1].ID != b.ID {
			copy(b.TokenHash[:], token)
			b.SubmittedAt, b.UpdatedAt = b.SubmittedAt.UTC(), b.UpdatedAt.UTC()
			b.StartedAt, b.LastSeenAt, b.CompletedAt = utc(started), utc(seen), utc(completed)
			builds = append(builds, b)
		}
		copy(file.SHA256[:], digest)
		setFile(&builds[len(builds)-1], kind, file)
	}
	return builds, rows.Err()
}

// setFile gives b a file. It ignores unknown kinds and the empty kind.
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

// utc returns *t in UTC, the zero time for nil.
func utc(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
