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
	list, err := d.deps.Store.Deployments(ctx, store.Text(v.Get("before")), pageRows+1)
	if err != nil || len(list) == 0 {
		return deploymentsData{}, err
	}
	data := deploymentsData{}
	if len(list) > pageRows {
		list = list[:pageRows]
		data.Next = v.With("before", list[pageRows-1].ID)
	}
	progress, err := d.deps.DeploymentStore.Progress(ctx, edge.Each(list, func(x store.Deployment) string { return x.ID })...)
	data.Rows = edge.Each(list, func(x store.Deployment) deploymentRow { return deploymentRow{x, progress[x.ID]} })
	return data, err
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
	after := store.DeploymentRepo{Step: store.RepoStep(store.Text(v.Get("after"))), Name: store.Text(v.Get("after_id"))}
	repos, err := d.deps.Store.Repos(ctx, v.id, after, pageRows+1)
	data := deploymentData{deploymentRow: deploymentRow{found, progress[v.id]}, Repos: repos}
	if len(repos) > pageRows {
		data.Repos = repos[:pageRows]
		last := repos[pageRows-1]
		data.Next = v.With("after", string(last.Step), "after_id", last.Name)
	}
	return data, err
}
