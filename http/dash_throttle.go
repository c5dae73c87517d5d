package http

import (
	"context"
	"strconv"
	"strings"

	"takt/http/edge"
	"takt/store"
)

// throttleData is the data of the throttle queues' page.
type throttleData struct {
	Queues []store.QueueStatus
	Next   string // query of the next page
	// One is the queue that was searched for. The page shows more about it.
	One *store.QueueStatus
}

func (d *dashboard) loadThrottle(ctx context.Context, v *view) (any, error) {
	q, portal := store.Text(strings.TrimSpace(v.Get("q"))), int64(0)
	if strings.HasPrefix(q, "queue:") {
		one, err := d.deps.ThrottleStore.Queue(ctx, q)
		return throttleData{Queues: []store.QueueStatus{one}, One: &one}, err
	}
	if q != "" {
		var err error
		if portal, err = strconv.ParseInt(q, 10, 64); err != nil || portal <= 0 {
			return nil, edge.Invalid("Search for a queue's id, or a portal's number")
		}
	}
	depth, _ := strconv.Atoi(v.Get("after")) // a bad value means an idle queue
	list, err := d.store.Queues(ctx, portal, store.QueueStatus{ID: store.Text(v.Get("after_id")), Depth: depth}, pageRows+1)
	data := throttleData{Queues: list}
	if len(list) > pageRows {
		data.Queues = list[:pageRows]
		last := list[pageRows-1]
		data.Next = v.With("after", strconv.Itoa(min(last.Depth, 1)), "after_id", last.ID)
	}
	return data, err
}

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

func (d *dashboard) loadDeployments(ctx context.Context, v *view) (any, error) {
	list, err := d.store.Deployments(ctx, store.Text(v.Get("before")), pageRows+1)
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

func (d *dashboard) loadDeployment(ctx context.Context, v *view) (any, error) {
	if !store.ValidID(v.id) {
		return nil, deploymentNotFound()
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
	repos, err := d.store.Repos(ctx, v.id, after, pageRows+1)
	data := deploymentData{deploymentRow: deploymentRow{found, progress[v.id]}, Repos: repos}
	if len(repos) > pageRows {
		data.Repos = repos[:pageRows]
		last := repos[pageRows-1]
		data.Next = v.With("after", string(last.Step), "after_id", last.Name)
	}
	return data, err
}

// auditData is the data of the audit page.
type auditData struct {
	Rows []store.AuditEntry
	Next string
}

func (d *dashboard) loadAudit(ctx context.Context, v *view) (any, error) {
	before, err := edge.Sequence("before", v.Get("before"))
	if err != nil {
		return nil, err
	}
	entries, err := d.store.Audit(ctx, store.AuditFilter{Text: store.Text(strings.TrimSpace(v.Get("q"))), Before: before, Limit: pageRows + 1})
	if err != nil {
		return nil, err
	}
	data := auditData{}
	if len(entries) > pageRows {
		entries = entries[:pageRows]
		data.Next = v.With("before", strconv.FormatInt(entries[pageRows-1].ID, 10))
	}
	data.Rows = entries
	return data, nil
}
