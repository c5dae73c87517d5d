package dashboard

import (
	"context"

	"takt/http/edge"
	"takt/store"
)

// deploymentRow is a deployment with its counts.
type deploymentRow struct {
	store.Deployment
	store.DeploymentProgress
}

// Of returns the count of a step.
func (r deploymentRow) Of(step string) int { return r.Steps[store.RepoStep(step)] }

// Badge returns the state to show: a deployment that is done may have failed in part.
func (r deploymentRow) Badge() string {
	if r.State == store.DeploymentDone && r.Of("failed") > 0 {
		return "partly failed"
	}
	return string(r.State)
}

// Ended returns how many repositories have ended.
func (r deploymentRow) Ended() int { return r.Total() - r.Left() }

func (d *Dashboard) loadDeployments(ctx context.Context, v *view) (any, error) {
	found, next, err := d.deps.DeploymentStore.List(ctx, v.rows("after"))
	if err != nil || len(found) == 0 {
		return list[deploymentRow]{}, err
	}
	progress, err := d.deps.DeploymentStore.Progress(ctx, edge.Each(found, func(x store.Deployment) string { return x.ID })...)
	rows := edge.Each(found, func(x store.Deployment) deploymentRow { return deploymentRow{x, progress[x.ID]} })
	return listOf(v, "after", rows, next), err
}

// deploymentData is the data of a deployment's page.
type deploymentData struct {
	deploymentRow
	list[store.DeploymentRepo]
}

func (d *Dashboard) loadDeployment(ctx context.Context, v *view) (any, error) {
	if !store.ValidID(v.id) {
		return nil, notFound("Deployment")
	}
	found, err := d.deps.DeploymentStore.Find(ctx, v.id)
	if err != nil {
		return nil, err
	}
	progress, err := d.deps.DeploymentStore.Progress(ctx, v.id)
	if err != nil {
		return nil, err
	}
	repos, next, err := d.deps.Store.Repos(ctx, v.id, v.rows("after"))
	return deploymentData{deploymentRow{found, progress[v.id]}, listOf(v, "after", repos, next)}, err
}
