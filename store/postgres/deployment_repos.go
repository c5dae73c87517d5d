package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// planTimeout bounds Plan, which writes a row for each repository.
const planTimeout = time.Minute

const sqlPlanDeployment = `
UPDATE deployments SET state = 'running', planned_at = now(), filtered = $2 WHERE id = $1`

const sqlPlanRepos = `
INSERT INTO deployment_repos (deployment_id, name, target, source, step, error, finished_at)
SELECT $1, r.name, r.target, r.source, CASE WHEN r.refused THEN 'failed' ELSE 'planned' END,
	CASE WHEN r.refused THEN r.source->>'refused' END, CASE WHEN r.refused THEN now() END
FROM (SELECT name, target, source, coalesce(source->>'refused', '') <> '' AS refused
	FROM unnest($2::text[], $3::text[], $4::jsonb[]) AS p (name, target, source)) r`

// Plan writes down what a deployment consists of, and starts it. What is refused
// has failed at once.
func (s *Deployments) Plan(ctx context.Context, claim store.DeploymentClaim, repos []store.DeploymentRepo, filtered int) error {
	names, targets, sources := make([]string, len(repos)), make([]string, len(repos)), make([][]byte, len(repos))
	for i, r := range repos {
		raw, err := json.Marshal(r.Source)
		if err != nil {
			return fmt.Errorf("encoding a repository: %w", err)
		}
		names[i], targets[i], sources[i] = r.Name, r.Target, raw
	}
	err := s.db.run(ctx, planTimeout, func(ctx context.Context, c *pgx.Conn) error {
		tx, err := c.Begin(ctx)
		if err != nil {
			return err
		}
		defer rollback(ctx, tx)
		d, err := lockDeployment(ctx, tx, claim.ID)
		if err != nil {
			return err
		}
		if d.run != claim.Run || d.state != store.DeploymentPlanning {
			return errTakenOver()
		}
		if _, err := tx.Exec(ctx, sqlPlanRepos, claim.ID, names, targets, sources); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlPlanDeployment, claim.ID, filtered); err != nil {
			return err
		}
		return commit(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("planning deployment %s: %w", claim.ID, err)
	}
	return nil
}

const repoColumns = `name, target, source, step, run, attempts, coalesce(target_id, 0), coalesce(target_url, ''), refs,
	coalesce(error, ''), coalesce(warning, ''), started_at, finished_at, updated_at`

func scanRepo(row pgx.CollectableRow) (r store.DeploymentRepo, err error) {
	var started, finished *time.Time
	err = row.Scan(&r.Name, &r.Target, &r.Source, &r.Step, &r.Run, &r.Attempts, &r.TargetID, &r.TargetURL, &r.Refs,
		&r.Error, &r.Warning, &started, &finished, &r.UpdatedAt)
	r.StartedAt, r.FinishedAt, r.UpdatedAt = utc(started), utc(finished), r.UpdatedAt.UTC()
	return r, err
}

const sqlDeploymentRepos = `SELECT ` + repoColumns + ` FROM deployment_repos
WHERE deployment_id = $1 AND ($2::timestamptz IS NULL OR updated_at >= $2) ORDER BY name`

// Repos returns a deployment's repositories by name; those only that changed at
// since or later, unless since is zero.
func (s *Deployments) Repos(ctx context.Context, id string, since time.Time) ([]store.DeploymentRepo, error) {
	var from *time.Time
	if !since.IsZero() {
		from = &since
	}
	return s.repos(ctx, id, sqlDeploymentRepos, id, from)
}

const sqlOpenDeploymentRepos = `SELECT ` + repoColumns + ` FROM deployment_repos
WHERE deployment_id = $1 AND step NOT IN ('done', 'failed', 'skipped') AND (NOT $2 OR (source->>'taken')::boolean)
ORDER BY step = 'planned', name`

// Open returns what is still to be done, what was begun first. A dry run only
// looks at what the target has already.
func (s *Deployments) Open(ctx context.Context, id string, dryRun bool) ([]store.DeploymentRepo, error) {
	return s.repos(ctx, id, sqlOpenDeploymentRepos, id, dryRun)
}

func (s *Deployments) repos(ctx context.Context, id, query string, args ...any) (repos []store.DeploymentRepo, err error) {
	err = s.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		repos, err = pgx.CollectRows(rows, scanRepo)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the repositories of deployment %s: %w", id, err)
	}
	return repos, nil
}

// mine is the fence: the deployment is this run's ($2), and runs.
const mine = `EXISTS (SELECT FROM deployments WHERE id = $1 AND run = $2 AND state = 'running')
	AND deployment_id = $1 AND name = $3 AND step NOT IN ('done', 'failed', 'skipped')`

const sqlBeginRepo = `
UPDATE deployment_repos SET run = run + 1, attempts = attempts + 1, started_at = coalesce(started_at, now()), updated_at = now()
WHERE ` + mine + ` RETURNING ` + repoColumns

// Begin gives a repository to a worker, and fences those that had it before.
func (s *Deployments) Begin(ctx context.Context, claim store.DeploymentClaim, name string) (r store.DeploymentRepo, err error) {
	err = s.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlBeginRepo, claim.ID, claim.Run, name)
		if err != nil {
			return err
		}
		r, err = pgx.CollectExactlyOneRow(rows, scanRepo)
		if errors.Is(err, pgx.ErrNoRows) {
			return errTakenOver()
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return store.DeploymentRepo{}, fmt.Errorf("beginning %s of deployment %s: %w", name, claim.ID, err)
	}
	return r, nil
}

const sqlRepoStep = `
UPDATE deployment_repos SET step = $5, target_id = coalesce(nullif($6, 0), target_id), target_url = coalesce(nullif($7, ''), target_url),
	made_at = CASE WHEN $8 THEN now() ELSE made_at END, refs = $9, error = nullif($10, ''), warning = coalesce(nullif($11, ''), warning),
	finished_at = CASE WHEN $5 IN ('done', 'failed', 'skipped') THEN now() END, updated_at = now()
WHERE ` + mine + ` AND run = $4`

// Step writes how far a repository is. It fails with StaleAttempt when the
// repository is at its end, or somebody else's.
func (s *Deployments) Step(ctx context.Context, claim store.DeploymentClaim, name string, run int64, change store.RepoChange) error {
	return s.write(ctx, claim, name, sqlRepoStep, claim.ID, claim.Run, name, run, string(change.Step), change.TargetID, change.TargetURL,
		change.Made, change.Refs, store.Text(change.Error), store.Text(change.Warning))
}

const sqlLoseRepo = `
UPDATE deployment_repos SET step = 'failed', error = $4, finished_at = now(), updated_at = now() WHERE ` + mine

// Lose records that the worker of a repository has ended without a word. It
// fails with StaleAttempt when the word was written after all.
func (s *Deployments) Lose(ctx context.Context, claim store.DeploymentClaim, name, message string) error {
	return s.write(ctx, claim, name, sqlLoseRepo, claim.ID, claim.Run, name, store.Text(message))
}

func (s *Deployments) write(ctx context.Context, claim store.DeploymentClaim, name, query string, args ...any) error {
	err := s.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		tag, err := c.Exec(ctx, query, args...)
		if err == nil && tag.RowsAffected() == 0 {
			return errTakenOver()
		}
		return statementFailure(ctx, err)
	})
	if err != nil {
		return fmt.Errorf("writing %s of deployment %s: %w", name, claim.ID, err)
	}
	return nil
}

const sqlMadeRepos = `
SELECT extract(epoch FROM now() - r.made_at)::float8 FROM deployment_repos r JOIN deployments d ON d.id = r.deployment_id
WHERE r.made_at > now() - $2::interval AND d.credential_id = $1 ORDER BY r.made_at`

// Made returns how long ago repositories were made with a credential, oldest
// first, within the given time.
func (s *Deployments) Made(ctx context.Context, credentialID []byte, within time.Duration) (ages []time.Duration, err error) {
	err = s.db.run(ctx, opTimeout, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, sqlMadeRepos, credentialID, within)
		if err != nil {
			return err
		}
		ages, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (time.Duration, error) {
			var s float64
			err := row.Scan(&s)
			return seconds(s), err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading when repositories were made: %w", err)
	}
	return ages, nil
}
