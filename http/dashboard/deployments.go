package dashboard

import (
	"context"

	"takt/http/edge"
	"takt/store"
)

// deploymentsData is the data of the list of deployments.
type deploymentsData struct {
	Rows []deploymentRow
	Next string // query of the next page
}

// deploymentRow is a deployment with its counts.
type deploymentRow struct {
	store.Deployment
	store.DeploymentProgress
}

// Of returns the count of a step.
func (r deploymentRow) Of(step string) int { return r.Steps[store.RepoStep(step)] }

// Ended returns how many repositories have ended.
func (r deploymentRow) Ended() int { return r.Total() - r.Left() }

func (d *Dashboard) loadDeployments(ctx context.Context, v *view) (any, error) {
	list, next, err := d.deps.DeploymentStore.List(ctx, v.rows("after"))
	if err != nil || len(list) == 0 {
		return deploymentsData{}, err
	}
	progress, err := d.deps.DeploymentStore.Progress(ctx, edge.Each(list, func(x store.Deployment) string { return x.ID })...)
	rows := edge.Each(list, func(x store.Deployment) deploymentRow { return deploymentRow{x, progress[x.ID]} })
	return deploymentsData{Rows: rows, Next: v.next("after", next)}, err
}

// deploymentData is the data of a deployment's page.
type deploymentData struct {
	deploymentRow
	Repos []store.DeploymentRepo
	Next  string // query of the next page of repositories
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
	return deploymentData{deploymentRow: deploymentRow{found, progress[v.id]}, Repos: repos, Next: v.next("after", next)}, err
}
