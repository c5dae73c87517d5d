package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// sqlLockDeployment is the first statement of every change of a deployment's state.
const sqlLockDeployment = `/* lock_deployment */ SELECT ` + deploymentColumns + ` FROM deployments WHERE id = $1 FOR UPDATE`

// change locks a deployment's row and runs f, unless may returns an error.
func (s *Deployments) change(
	ctx context.Context, o operation, id string, may func(store.Deployment) error, f func(context.Context, pgx.Tx, store.Deployment) error,
) error {
	return o.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sqlLockDeployment, id) // its error is that of the row
		d, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[store.Deployment])
		if err = orNone(err, errNoDeployment); err == nil {
			err = may(d)
		}
		if err != nil {
			return err
		}
		return f(ctx, tx, d)
	})
}

// inRun returns a check that the claim's run is still the deployment's, and that the
// deployment is in one of states. Otherwise its error is StaleAttempt.
func inRun(claim store.DeploymentClaim, states ...store.DeploymentState) func(store.Deployment) error {
	return func(d store.Deployment) error {
		if d.Run != claim.Run || !slices.Contains(states, d.State) {
			return errTakenOver()
		}
		return nil
	}
}

// sqlOpenRepos counts the repositories that are not finished. A dry run ($2) counts
// only those that the target already has.
const sqlOpenRepos = `/* open_repos */ SELECT count(*)::int FROM deployment_repos WHERE deployment_id = $1
	AND step NOT IN ('done', 'failed', 'skipped') AND (NOT $2 OR (source->>'taken')::boolean)`

const sqlEndDeployment = `/* end_deployment */
UPDATE deployments SET state = $2, error = nullif($3, ''), finished_at = now(), credential = NULL, owner = NULL, leased_until = NULL
WHERE id = $1`

// Finish records that a running deployment is done and deletes its credential, if every
// repository is finished; otherwise it changes nothing and returns how many are left.
// Errors: NotFound; StaleAttempt if the deployment has ended or has had another run.
func (s *Deployments) Finish(ctx context.Context, claim store.DeploymentClaim) (left int, err error) {
	op, may := s.db.write("finishing deployment "+claim.ID), inRun(claim, store.DeploymentRunning)
	err = s.change(ctx, op, claim.ID, may, func(ctx context.Context, tx pgx.Tx, d store.Deployment) error {
		if err := tx.QueryRow(ctx, sqlOpenRepos, claim.ID, d.Request.DryRun).Scan(&left); err != nil || left > 0 {
			return err
		}
		_, err := tx.Exec(ctx, sqlEndDeployment, claim.ID, store.DeploymentDone, "")
		return err
	})
	return left, err
}

const sqlFailRest = `/* fail_rest */
UPDATE deployment_repos SET step = 'failed', error = $2, finished_at = now(), updated_at = now()
WHERE deployment_id = $1 AND step NOT IN ('done', 'failed', 'skipped')`

// Abandon ends a deployment that no worker continues, and deletes its credential. Its
// unfinished repositories fail with message and the deployment is done, or fails itself if
// it was not planned yet. Its errors are those of Finish.
func (s *Deployments) Abandon(ctx context.Context, claim store.DeploymentClaim, message string) error {
	op, may := s.db.write("abandoning deployment "+claim.ID), inRun(claim, store.DeploymentPlanning, store.DeploymentRunning)
	return s.change(ctx, op, claim.ID, may, func(ctx context.Context, tx pgx.Tx, d store.Deployment) error {
		state, text := store.DeploymentDone, ""
		if d.State == store.DeploymentPlanning {
			state, text = store.DeploymentFailed, message
		}
		if _, err := tx.Exec(ctx, sqlFailRest, claim.ID, store.ErrorText(message)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlEndDeployment, claim.ID, state, store.ErrorText(text))
		return err
	})
}

const sqlCancelRest = `/* cancel_rest */
UPDATE deployment_repos SET step = 'skipped', cancelled = true, finished_at = now(), updated_at = now(),
	error = CASE step WHEN 'planned' THEN 'Cancelled' ELSE 'Cancelled while ' || step END
WHERE deployment_id = $1 AND step NOT IN ('done', 'failed', 'skipped')`

// Cancel ends a deployment, unless may returns an error, and deletes its credential. Its
// unfinished repositories are skipped. Errors: NotFound, Conflict if it has ended, and that
// of may.
func (s *Deployments) Cancel(ctx context.Context, id string, may func(store.Deployment) error) error {
	return s.change(ctx, s.db.write("cancelling deployment "+id), id, may, func(ctx context.Context, tx pgx.Tx, d store.Deployment) error {
		if d.State.Final() {
			return store.NewError(store.Conflict, "Deployment is "+string(d.State)+" already")
		}
		if _, err := tx.Exec(ctx, sqlCancelRest, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlEndDeployment, id, store.DeploymentCancelled, "")
		return err
	})
}

const sqlPauseDeployment = `/* pause_deployment */
UPDATE deployments SET state = 'paused', run = run + 1, owner = NULL, leased_until = NULL WHERE id = $1`

// Pause stops the work on a deployment until Resume, unless may returns an error. Errors:
// NotFound, Conflict if it is neither being planned nor running, and that of may.
func (s *Deployments) Pause(ctx context.Context, id string, may func(store.Deployment) error) error {
	return s.change(ctx, s.db.write("pausing deployment "+id), id, may, func(ctx context.Context, tx pgx.Tx, d store.Deployment) error {
		if d.State != store.DeploymentPlanning && d.State != store.DeploymentRunning {
			return store.NewError(store.Conflict, "Deployment is "+string(d.State))
		}
		_, err := tx.Exec(ctx, sqlPauseDeployment, id)
		return err
	})
}

const sqlResumeDeployment = `/* resume_deployment */
UPDATE deployments SET state = CASE WHEN planned_at IS NULL THEN 'planning' ELSE 'running' END WHERE id = $1`

// Resume continues a paused deployment where it was, unless may returns an error. Errors:
// NotFound, Conflict if it is not paused, and that of may.
func (s *Deployments) Resume(ctx context.Context, id string, may func(store.Deployment) error) error {
	return s.change(ctx, s.db.write("resuming deployment "+id), id, may, func(ctx context.Context, tx pgx.Tx, d store.Deployment) error {
		if d.State != store.DeploymentPaused {
			return store.NewError(store.Conflict, "Deployment is "+string(d.State)+", not paused")
		}
		_, err := tx.Exec(ctx, sqlResumeDeployment, id)
		return err
	})
}

// sqlReviveRepos revives one repository ($2), or all that failed or were skipped by a
// cancel. A repository that was already created in the target continues with pushing.
const sqlReviveRepos = `/* revive_repos */
UPDATE deployment_repos SET step = CASE WHEN target_id IS NULL THEN 'planned' ELSE 'pushing' END, run = run + 1,
	error = NULL, warning = NULL, cancelled = false, finished_at = NULL, updated_at = now()
WHERE deployment_id = $1 AND CASE WHEN $2 = '' THEN step = 'failed' OR cancelled ELSE name = $2 AND step IN ('failed', 'skipped') END`

const sqlReviveDeployment = `/* revive_deployment */
UPDATE deployments SET state = CASE WHEN planned_at IS NULL THEN 'planning' ELSE 'running' END, run = run + 1,
	credential = $2, credential_id = $3, error = NULL, finished_at = NULL, owner = NULL, leased_until = NULL
WHERE id = $1`

// Retry revives the repository repo, or with "" all that failed or that a cancel skipped,
// and returns how many. While the deployment's row is locked it calls choose, which returns
// an error or the sealed credential (nil for takt's own) and its id. They are for a
// deployment that had ended; one that has not keeps its own. choose may be called more than
// once. Errors: NotFound, Conflict if there is nothing to retry, and that of choose.
func (s *Deployments) Retry(ctx context.Context, id, repo string, choose func(store.Deployment) (credential, credentialID []byte, err error)) (revived int, err error) {
	var credential, credentialID []byte
	may := func(d store.Deployment) (err error) {
		credential, credentialID, err = choose(d)
		return err
	}
	err = s.change(ctx, s.db.write("retrying deployment "+id), id, may, func(ctx context.Context, tx pgx.Tx, d store.Deployment) error {
		if d.Request.DryRun {
			return store.NewError(store.Conflict, "A dry run has nothing to try again")
		}
		tag, err := tx.Exec(ctx, sqlReviveRepos, id, repo)
		if err != nil {
			return err
		}
		revived = int(tag.RowsAffected())
		unplanned := d.State.Final() && d.PlannedAt.IsZero() && repo == ""
		if revived == 0 && !unplanned {
			return store.NewError(store.Conflict, "Nothing to try again")
		}
		if d.State.Final() {
			_, err = tx.Exec(ctx, sqlReviveDeployment, id, credential, credentialID)
		}
		return err
	})
	return revived, err
}
