package http

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"takt/store"
)

// throttleData is the data of the throttle queues' page.
type throttleData struct {
	Queues []store.QueueStatus
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
			return nil, invalid("Search for a queue's id, or a portal's number")
		}
	}
	list, err := d.deps.ThrottleStore.Queues(ctx, portal, pageRows*2)
	return throttleData{Queues: list}, err
}

// deploymentsData is the data of the list of deployments.
type deploymentsData struct{ Rows []deploymentRow }

// deploymentRow is a deployment with its counts.
type deploymentRow struct {
	store.Deployment
	store.DeploymentProgress
}

// Of returns the count of a step.
func (r deploymentRow) Of(step string) int { return r.Steps[store.RepoStep(step)] }

// Ended returns how many repositories have ended.
func (r deploymentRow) Ended() int { return r.Total() - r.Left() }

func (d *dashboard) loadDeployments(ctx context.Context, _ *view) (any, error) {
	list, err := d.deps.DeploymentStore.List(ctx, pageRows)
	if err != nil || len(list) == 0 {
		return deploymentsData{}, err
	}
	progress, err := d.deps.DeploymentStore.Progress(ctx, each(list, func(x store.Deployment) string { return x.ID })...)
	return deploymentsData{each(list, func(x store.Deployment) deploymentRow { return deploymentRow{x, progress[x.ID]} })}, err
}

// deploymentData is the data of a deployment's page.
type deploymentData struct {
	deploymentRow
	Repos []store.DeploymentRepo
	// Hidden is how many repositories are not shown.
	Hidden int
}

// maxRepos is how many repositories a page shows: failed ones first, then those in
// progress.
const maxRepos = 500

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
	repos, err := d.deps.DeploymentStore.Repos(ctx, v.id, time.Time{})
	if err != nil {
		return nil, err
	}
	order := map[store.RepoStep]int{store.RepoFailed: 0, store.RepoCreating: 1, store.RepoPushing: 1, store.RepoVerifying: 1, store.RepoPlanned: 2, store.RepoDone: 3, store.RepoSkipped: 4}
	slices.SortStableFunc(repos, func(a, b store.DeploymentRepo) int {
		if d := order[a.Step] - order[b.Step]; d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	data := deploymentData{deploymentRow: deploymentRow{found, progress[v.id]}, Hidden: max(len(repos)-maxRepos, 0)}
	data.Repos = repos[:min(len(repos), maxRepos)]
	return data, nil
}

// auditData is the data of the audit page.
type auditData struct {
	Rows []store.AuditEntry
	Next string
}

func (d *dashboard) loadAudit(ctx context.Context, v *view) (any, error) {
	before, err := sequence("before", v.Get("before"))
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
