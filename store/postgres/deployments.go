package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
)

// Deployments stores deployments and their repositories. Rows are locked in one order: the
// deployment, then its repositories. Safe for concurrent use.
type Deployments struct{ db *DB }

// NewDeployments returns the deployments of db.
func NewDeployments(db *DB) *Deployments { return &Deployments{db: db} }

func errNoDeployment() error { return store.NewError(store.NotFound, "Deployment not found") }

// errTakenOver is the error of a write by an earlier run or worker, or about something that
// has ended.
func errTakenOver() error {
	return store.NewError(store.StaleAttempt, "Deployment was ended or taken over")
}

const sqlCreateDeployment = `/* create_deployment */
INSERT INTO deployments (id, request, credential, credential_id) VALUES ($1, $2, $3, $4) RETURNING created_at`

// Create adds a deployment in the state planning, and returns it with its time of creation.
func (s *Deployments) Create(ctx context.Context, d store.Deployment) (store.Deployment, error) {
	request, err := json.Marshal(d.Request)
	if err != nil {
		return store.Deployment{}, fmt.Errorf("encoding a deployment: %w", err)
	}
	d.State = store.DeploymentPlanning
	err = s.db.write("creating deployment "+d.ID).scan(ctx, nil, []any{&d.CreatedAt},
		sqlCreateDeployment, d.ID, request, d.Credential, d.CredentialID)
	return d, err
}

const deploymentColumns = `id, request, state, run, credential, credential_id, filtered, coalesce(error, ''),
	created_at, planned_at, finished_at`

const sqlFindDeployment = `/* find_deployment */ SELECT ` + deploymentColumns + ` FROM deployments WHERE id = $1`

// Find returns a deployment. Error: NotFound.
func (s *Deployments) Find(ctx context.Context, id string) (store.Deployment, error) {
	return rowOf(ctx, s.db.read("finding deployment "+id), errNoDeployment, pgx.RowToStructByPos[store.Deployment], sqlFindDeployment, id)
}

const sqlListDeployments = `/* list_deployments */ SELECT ` + deploymentColumns + ` FROM deployments
WHERE created_at <= @after AND (created_at < @after OR id > @after_id) AND created_at >= @until AND (created_at > @until OR id <= @until_id)
ORDER BY created_at DESC, id OFFSET @skip::int LIMIT @limit::int`

// List returns a page of deployments, newest first.
func (s *Deployments) List(ctx context.Context, p store.Page) ([]store.Deployment, store.Cursor, error) {
	after, until := pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}, pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	var afterID, untilID string
	if err := errors.Join(p.After.Keys("deployments", &after, &afterID), p.Until.Keys("deployments", &until, &untilID)); err != nil {
		return nil, "", err
	}
	return pageOf(ctx, s.db.read("listing deployments"), pgx.RowToStructByPos[store.Deployment],
		func(d store.Deployment) store.Cursor { return store.NewCursor("deployments", d.CreatedAt, d.ID) },
		sqlListDeployments, p, pgx.NamedArgs{"after": after, "after_id": afterID, "until": until, "until_id": untilID})
}

// sqlProgress counts repositories by step. Each row repeats the deployment's window: how
// many seconds, up to 60, it has been running.
const sqlProgress = `/* progress */
SELECT d.id, coalesce(least(extract(epoch FROM coalesce(d.finished_at, now()) - d.planned_at), 60), 0)::float8,
	r.step, r.n, r.refs, r.recent
FROM deployments d, LATERAL (
	SELECT step, count(*)::int AS n, sum(refs)::int AS refs,
		(count(*) FILTER (WHERE finished_at > coalesce(d.finished_at, now()) - interval '1 minute'))::int AS recent
	FROM deployment_repos WHERE deployment_id = d.id GROUP BY step
) r WHERE d.id = ANY ($1)`

// Progress counts the repositories of deployments, by the ids of these.
func (s *Deployments) Progress(ctx context.Context, ids ...string) (map[string]store.DeploymentProgress, error) {
	found := make(map[string]store.DeploymentProgress, len(ids))
	var id string
	var window float64
	var step store.RepoStep
	var n, refs, recent int
	err := s.db.read("counting a deployment's repositories").each(ctx, []any{&id, &window, &step, &n, &refs, &recent}, func() error {
		p := found[id]
		if p.Steps == nil {
			p.Steps = map[store.RepoStep]int{}
		}
		p.Steps[step] = n
		p.Refs += refs
		p.Recent += recent
		p.Window = seconds(window)
		found[id] = p
		return nil
	}, sqlProgress, ids)
	return found, err
}

// sqlClaimDeployments claims for owner $1, with lease $2, up to $4 deployments other than
// $3, the oldest first.
const sqlClaimDeployments = `/* claim_deployments */
UPDATE deployments SET owner = $1, run = run + 1, leased_until = now() + $2::interval
WHERE id IN (
	SELECT id FROM deployments
	WHERE state IN ('planning', 'running') AND NOT id = ANY ($3)
		AND (owner IS NULL OR owner = $1 OR leased_until < now())
	ORDER BY created_at, id LIMIT $4 FOR UPDATE SKIP LOCKED
)
RETURNING id, run`

// Claim gives owner up to limit deployments that nobody works on: those without an owner,
// those whose lease has expired, and those of owner that are not in has. Each claim begins a
// new run, which stops the writes of earlier ones.
func (s *Deployments) Claim(ctx context.Context, owner string, lease time.Duration, has []string, limit int) ([]store.DeploymentClaim, error) {
	if has == nil {
		has = []string{}
	}
	return s.claims(ctx, "claiming deployments", sqlClaimDeployments, owner, lease, has, max(limit, 0))
}

const sqlRenewDeployments = `/* renew_deployments */
UPDATE deployments SET leased_until = now() + $2::interval
WHERE id = ANY ($3) AND owner = $1 AND state IN ('planning', 'running')
RETURNING id, run`

// Renew extends the leases of those deployments that still belong to owner, and returns
// them.
func (s *Deployments) Renew(ctx context.Context, owner string, lease time.Duration, ids []string) ([]store.DeploymentClaim, error) {
	return s.claims(ctx, "renewing the lease of deployments", sqlRenewDeployments, owner, lease, ids)
}

func (s *Deployments) claims(ctx context.Context, doing, query string, args ...any) ([]store.DeploymentClaim, error) {
	return rowsOf(ctx, s.db.write(doing), pgx.RowToStructByPos[store.DeploymentClaim], query, args...)
}
