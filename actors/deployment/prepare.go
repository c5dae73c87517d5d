package deployment

import (
	"context"
	"time"

	"takt/actors/deployment/forge"
	"takt/store"
	"takt/store/seal"
)

// prepare reads a deployment, plans it if it has no plan, and returns its unfinished
// repositories.
func (d *Deployments) prepare(ctx context.Context, claim store.DeploymentClaim) (*job, error) {
	found, err := d.db.Find(ctx, claim.ID)
	if err != nil {
		return nil, err
	}
	if found.Run != claim.Run || found.State != store.DeploymentPlanning && found.State != store.DeploymentRunning {
		return nil, store.NewError(store.StaleAttempt, "Deployment was ended or taken over")
	}
	account, err := d.login(ctx, found)
	if err != nil {
		return nil, err
	}
	if found.State == store.DeploymentPlanning {
		if err := d.plan(ctx, claim, found.Request, account); err != nil {
			return nil, err
		}
	}
	open, err := d.db.Open(ctx, claim.ID, found.Request.DryRun)
	return &job{request: found.Request, account: account, open: open}, err
}

// login opens the credential. It seeds the credential's budget with the repositories that
// were made before this process began.
func (d *Deployments) login(ctx context.Context, found store.Deployment) (Account, error) {
	token := d.cfg.Token
	if found.Credential != nil {
		opened, err := d.cfg.Keys.Open(seal.ForgeCredential, found.ID, found.Credential)
		if err != nil {
			return nil, &forge.Error{Message: "The forge credential can't be opened with this encryption key: try again with a new one"}
		}
		token = string(opened)
	}
	if found.Credential == nil && (token == "" || !d.cfg.allows(found.Request)) {
		return nil, &forge.Error{Message: "takt has no forge credential of its own for this any more: try again with one"}
	}
	ages, err := d.db.Made(ctx, found.CredentialID, time.Hour)
	if err != nil {
		return nil, err
	}
	account := d.forge.Login(token)
	account.Seed(ages)
	return account, nil
}

func (d *Deployments) plan(ctx context.Context, claim store.DeploymentClaim, r store.DeploymentRequest, account Account) error {
	source, err := account.Repos(ctx, r.SourceOrg)
	if err != nil {
		return err
	}
	taken, err := account.Repos(ctx, r.TargetOrg)
	if err != nil {
		return err
	}
	rows, filtered := plan(r, source, taken)
	return d.db.Plan(ctx, claim, rows, filtered)
}
