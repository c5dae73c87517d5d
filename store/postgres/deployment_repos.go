package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// planTimeout bounds Plan, which inserts a row for each repository.
const planTimeout = time.Minute

const sqlPlanDeployment = `/* plan_deployment */
UPDATE deployments SET state = 'running', planned_at = now(), filtered = $2 WHERE id = $1`

const sqlPlanRepos = `/* plan_repos */
INSERT INTO deployment_repos (deployment_id, name, target, source, step, error, finished_at)
SELECT $1, r.name, r.target, r.source, CASE WHEN r.refused THEN 'failed' ELSE 'planned' END,
	CASE WHEN r.refused THEN r.source->>'refused' END, CASE WHEN r.refused THEN now() END
FROM (SELECT name, target, source, coalesce(source->>'refused', '') <> '' AS refused
	FROM unnest($2::text[], $3::text[], $4::jsonb[]) AS p (name, target, source)) r`

// Plan stores the repositories of a deployment and starts it. filtered is how many others
// the request's filter left out. A repository whose source is refused fails at once. Errors:
// NotFound; StaleAttempt if the claim is no longer current.
func (s *Deployments) Plan(ctx context.Context, claim store.DeploymentClaim, repos []store.DeploymentRepo, filtered int) error {
	names, targets, sources := make([]string, len(repos)), make([]string, len(repos)), make([][]byte, len(repos))
	for i, r := range repos {
		raw, err := json.Marshal(r.Source)
		if err != nil {
			return fmt.Errorf("encoding a repository: %w", err)
		}
		names[i], targets[i], sources[i] = r.Name, r.Target, raw
	}
	planning := s.db.write("planning deployment " + claim.ID)
	planning.timeout = planTimeout
	may := inRun(claim, store.DeploymentPlanning)
	return s.change(ctx, planning, claim.ID, may, func(ctx context.Context, tx pgx.Tx, _ store.Deployment) error {
		if _, err := tx.Exec(ctx, sqlPlanRepos, claim.ID, names, targets, sources); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlPlanDeployment, claim.ID, filtered)
		return err
	})
}

const repoColumns = `name, target, source, step, run, attempts, coalesce(target_id, 0), coalesce(target_url, ''), refs,
	coalesce(error, ''), coalesce(warning, ''), started_at, finished_at, updated_at`

const sqlDeploymentRepos = `/* deployment_repos */ SELECT ` + repoColumns + ` FROM deployment_repos
WHERE deployment_id = $1 AND ($2::timestamptz IS NULL OR updated_at >= $2) ORDER BY name`

// Repos returns a deployment's repositories that changed at since or later, by name; all of
// them if since is zero.
func (s *Deployments) Repos(ctx context.Context, id string, since time.Time) ([]store.DeploymentRepo, error) {
	return rowsOf(ctx, s.db.read("reading the repositories of deployment "+id), pgx.RowToStructByPos[store.DeploymentRepo], sqlDeploymentRepos, id, orNull(since))
}

const sqlOpenDeploymentRepos = `/* open_deployment_repos */ SELECT ` + repoColumns + ` FROM deployment_repos
WHERE deployment_id = $1 AND step NOT IN ('done', 'failed', 'skipped') AND (NOT $2 OR (source->>'taken')::boolean)
ORDER BY step = 'planned', name`

// Open returns the unfinished repositories; those already begun come first. For a dry run
// it returns only those that the target already has.
func (s *Deployments) Open(ctx context.Context, id string, dryRun bool) ([]store.DeploymentRepo, error) {
	return rowsOf(ctx, s.db.read("reading the repositories of deployment "+id), pgx.RowToStructByPos[store.DeploymentRepo], sqlOpenDeploymentRepos, id, dryRun)
}

// current is a condition for every write about a repository: the deployment is running in
// the claim's run, and the repository is not finished. It stops writes of earlier runs.
const current = `EXISTS (SELECT FROM deployments WHERE id = @deployment AND run = @run AND state = 'running')
	AND deployment_id = @deployment AND name = @name AND step NOT IN ('done', 'failed', 'skipped')`

func repoArgs(claim store.DeploymentClaim, name string) pgx.NamedArgs {
	return pgx.NamedArgs{"deployment": claim.ID, "run": claim.Run, "name": name}
}

const sqlBeginRepo = `/* begin_repo */
UPDATE deployment_repos SET run = run + 1, attempts = attempts + 1, started_at = coalesce(started_at, now()), updated_at = now()
WHERE ` + current + ` RETURNING ` + repoColumns

// Begin gives a repository to a worker. Writes of its earlier workers fail from then on.
// Error: StaleAttempt if the claim is no longer current or the repository is finished.
func (s *Deployments) Begin(ctx context.Context, claim store.DeploymentClaim, name string) (store.DeploymentRepo, error) {
	return rowOf(ctx, s.db.write("beginning "+name+" of deployment "+claim.ID), errTakenOver, pgx.RowToStructByPos[store.DeploymentRepo], sqlBeginRepo, repoArgs(claim, name))
}

const sqlRepoStep = `/* repo_step */
UPDATE deployment_repos SET step = @step, target_id = coalesce(nullif(@target_id, 0), target_id), target_url = coalesce(nullif(@target_url, ''), target_url),
	made_at = CASE WHEN @made THEN now() ELSE made_at END, refs = @refs, error = nullif(@error, ''), warning = coalesce(nullif(@warning, ''), warning),
	finished_at = CASE WHEN @step IN ('done', 'failed', 'skipped') THEN now() END, updated_at = now()
WHERE ` + current + ` AND run = @repo_run`

// Step records the progress of a repository. run is the repository's, from Begin. It fails
// with StaleAttempt if the repository is finished or belongs to another worker, or the claim
// is no longer current.
func (s *Deployments) Step(ctx context.Context, claim store.DeploymentClaim, name string, run int64, change store.RepoChange) error {
	args := repoArgs(claim, name)
	args["repo_run"], args["step"], args["target_id"], args["target_url"] = run, string(change.Step), change.TargetID, change.TargetURL
	args["made"], args["refs"] = change.Made, change.Refs
	args["error"], args["warning"] = store.ErrorText(change.Error), store.ErrorText(change.Warning)
	return s.write(ctx, claim, name, sqlRepoStep, args)
}

const sqlLoseRepo = `/* lose_repo */
UPDATE deployment_repos SET step = 'failed', error = @error, finished_at = now(), updated_at = now() WHERE ` + current

// Lose records that the worker of a repository ended without a result: the repository fails
// with message. It fails with StaleAttempt if the worker did write a result, or the claim is
// no longer current.
func (s *Deployments) Lose(ctx context.Context, claim store.DeploymentClaim, name, message string) error {
	args := repoArgs(claim, name)
	args["error"] = store.ErrorText(message)
	return s.write(ctx, claim, name, sqlLoseRepo, args)
}

func (s *Deployments) write(ctx context.Context, claim store.DeploymentClaim, name, query string, args pgx.NamedArgs) error {
	return s.db.write("writing "+name+" of deployment "+claim.ID).change(ctx, errTakenOver, query, args)
}

const sqlMadeRepos = `/* made_repos */
SELECT now() - r.made_at FROM deployment_repos r JOIN deployments d ON d.id = r.deployment_id
WHERE r.made_at > now() - $2::interval AND d.credential_id = $1 ORDER BY r.made_at`

// Made returns how long ago repositories were created with a credential, the longest first,
// without those that are older than within.
func (s *Deployments) Made(ctx context.Context, credentialID []byte, within time.Duration) ([]time.Duration, error) {
	return rowsOf(ctx, s.db.read("reading when repositories were made"), pgx.RowTo[time.Duration], sqlMadeRepos, credentialID, within)
}
