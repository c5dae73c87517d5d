package api

import "takt/store"

// DeploymentRequest is the body of POST /api/deployments.
type DeploymentRequest struct {
	store.DeploymentRequest
	// Token is the forge credential. Without it takt uses its own, which needs the
	// header X-Admin-Key and a pair of organisations that its operators allow. Replies never
	// show it.
	Token string `json:"token,omitempty"`
}

// DeploymentCounts counts a deployment's repositories by step.
type DeploymentCounts struct {
	Total     int `json:"total"`
	Planned   int `json:"planned"`
	Creating  int `json:"creating"`
	Pushing   int `json:"pushing"`
	Verifying int `json:"verifying"`
	Done      int `json:"done"`
	Failed    int `json:"failed"`
	Skipped   int `json:"skipped"`
}

// Left returns how many repositories have not ended.
func (c DeploymentCounts) Left() int { return c.Total - c.Done - c.Failed - c.Skipped }

// DeploymentPlan is the result of a dry run.
type DeploymentPlan struct {
	Create   int `json:"create"`
	Skip     int `json:"skip"`     // the target already has an identical repository
	Conflict int `json:"conflict"` // the target has a different one of that name, or it can't be copied
	// Calls is the number of REST calls needed, Seconds the estimated duration.
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// Deployment is one deployment, as POST /api/deployments, GET
// /api/deployments/:id and the list show it.
type Deployment struct {
	ID string `json:"id" schema:"ID"`
	// State is planning, running, paused, done, cancelled or failed.
	State string `json:"state" schema:"DeploymentState"`
	// Request is the request as submitted.
	Request store.DeploymentRequest `json:"request" schema:"DeploymentRequest"`
	Counts  DeploymentCounts        `json:"counts"`
	// Filtered is how many repositories the filters left out.
	Filtered int `json:"filtered"`
	// Refs is the number of branches and tags in finished copies.
	Refs int `json:"refs"`
	// RatePerMinute is how many repositories ended per minute lately. ETASeconds is
	// how long the rest takes at that rate. Both are null if unknown.
	RatePerMinute *float64 `json:"rate_per_minute"`
	ETASeconds    *float64 `json:"eta_seconds"`
	Error         *string  `json:"error"`
	CreatedAt     Millis   `json:"created_at"`
	PlannedAt     *Millis  `json:"planned_at"`
	FinishedAt    *Millis  `json:"finished_at"`
	// Plan is the result of a finished dry run, else absent.
	Plan *DeploymentPlan `json:"plan,omitempty"`
	// Repos is present in GET /api/deployments/:id, unless ?repos=0.
	Repos []DeploymentRepo `json:"repos,omitempty"`
}

// NewDeployment converts a deployment and its progress.
func NewDeployment(d store.Deployment, p store.DeploymentProgress) Deployment {
	out := Deployment{
		ID: d.ID, State: string(d.State), Request: d.Request, Filtered: d.Filtered, Refs: p.Refs, Error: optional(d.Error),
		Counts: DeploymentCounts{
			Total: p.Total(), Planned: p.Steps[store.RepoPlanned], Creating: p.Steps[store.RepoCreating], Pushing: p.Steps[store.RepoPushing],
			Verifying: p.Steps[store.RepoVerifying], Done: p.Steps[store.RepoDone], Failed: p.Steps[store.RepoFailed], Skipped: p.Steps[store.RepoSkipped],
		},
		PlannedAt: NewMillis(d.PlannedAt), FinishedAt: NewMillis(d.FinishedAt),
	}
	if !d.CreatedAt.IsZero() {
		out.CreatedAt = millis(d.CreatedAt)
	}
	if rate := p.Rate(); rate > 0 {
		out.RatePerMinute = &rate
		if d.State == store.DeploymentRunning {
			eta := p.Remaining().Seconds()
			out.ETASeconds = &eta
		}
	}
	return out
}

// Ended reports whether the deployment makes no further progress by itself.
func (d Deployment) Ended() bool {
	return d.State == "done" || d.State == "cancelled" || d.State == "failed"
}

// DeploymentRepo is one repository of a deployment.
type DeploymentRepo struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	// Step is planned, creating, pushing, verifying, done, failed or skipped.
	Step     string `json:"step" enum:"planned,creating,pushing,verifying,done,failed,skipped"`
	Attempts int    `json:"attempts"`
	// Refs is how many branches and tags the copy has, each one verified.
	Refs int `json:"refs"`
	// DurationMS is the time from the first attempt to the end, or to now.
	DurationMS *int64  `json:"duration_ms"`
	Error      *string `json:"error"`
	Warning    *string `json:"warning"`
}

// NewDeploymentRepo converts a repository.
func NewDeploymentRepo(r store.DeploymentRepo) DeploymentRepo {
	out := DeploymentRepo{
		Name: r.Name, Target: r.Target, Step: string(r.Step), Attempts: r.Attempts, Refs: r.Refs,
		Error: optional(r.Error), Warning: optional(r.Warning),
	}
	if !r.StartedAt.IsZero() {
		end := r.FinishedAt
		if end.IsZero() {
			end = r.UpdatedAt // the same clock wrote both
		}
		ms := end.Sub(r.StartedAt).Milliseconds()
		out.DurationMS = &ms
	}
	return out
}

// Deployments is the reply of GET /api/deployments, newest first.
type Deployments struct {
	Deployments []Deployment `json:"deployments"`
}

// DeploymentRetry is the body of POST /api/deployments/:id/retry.
type DeploymentRetry struct {
	// Repo is the repository to retry; "" means all that failed or that a cancel
	// skipped.
	Repo string `json:"repo,omitempty"`
	// Token is the forge credential. It must be sent again once a deployment has
	// ended.
	Token string `json:"token,omitempty"`
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// Check implements [Checker].
func (r *DeploymentRetry) Check() error { return cleanReason(&r.Reason) }

// DeploymentRetried is the reply to a DeploymentRetry.
type DeploymentRetried struct {
	Retried int `json:"retried"`
}

// ListDeploymentsIn is the input of ListDeployments.
type ListDeploymentsIn struct {
	Limit int `query:"limit" min:"1" max:"500" default:"50"`
	Continue
}

// DeploymentPath is the input of endpoints that need a deployment's id only.
type DeploymentPath struct {
	ID DeploymentID `path:"id"`
}

// ShowDeploymentIn is the input of ShowDeployment.
type ShowDeploymentIn struct {
	ID DeploymentID `path:"id"`
	// Repos is 0 to leave the repositories out.
	Repos string `query:"repos" values:"0,1"`
}

// FollowDeploymentIn is the input of FollowDeployment.
type FollowDeploymentIn struct {
	ID DeploymentID `path:"id"`
	// LastEventID is the last event that the client has.
	LastEventID string `header:"Last-Event-ID"`
}

// DeploymentOrder is the input of CancelDeployment, PauseDeployment and ResumeDeployment.
type DeploymentOrder struct {
	ID   DeploymentID `path:"id"`
	Body Reason       `body:"loose"`
}

// RetryDeploymentIn is the input of RetryDeployment.
type RetryDeploymentIn struct {
	ID   DeploymentID    `path:"id"`
	Body DeploymentRetry `body:"json"`
}

// ListDeployments is GET /api/deployments.
var ListDeployments = declare[ListDeploymentsIn, Deployments](deployments, APIKey, scopeRead, Query, "GET /api/deployments", Route{
	ID: "listDeployments", Headers: paged, Summary: "List deployments, newest first",
})

// StartDeployment is POST /api/deployments.
var StartDeployment = declare[DeploymentRequest, Deployment](deployments, APIKey, scopeOperate, Write, "POST /api/deployments", Route{
	ID: "startDeployment", AdminToo: true, Status: 202, Errors: []int{422}, Headers: []string{"Location"},
	Says:    "The deployment has started.",
	Summary: "Copy an organisation's repositories into another",
})

// ShowDeployment is GET /api/deployments/:id.
var ShowDeployment = declare[ShowDeploymentIn, Deployment](deployments, APIKey, scopeRead, Query, "GET /api/deployments/:id", Route{
	ID: "showDeployment", Summary: "Show a deployment with its repositories",
	Says: "The deployment.",
})

// FollowDeployment is GET /api/deployments/:id/events.
var FollowDeployment = declare[FollowDeploymentIn, None](deployments, APIKey, scopeRead, Query, "GET /api/deployments/:id/events", Route{
	ID: "followDeployment", Media: []string{eventStream}, Summary: "Follow a deployment to its end",
	Says: "A stream of server-sent events until the deployment has ended.", Sends: []any{DeploymentRepo{}, Deployment{}},
	Text: "`repo` shows a repository that has changed, at first each of them; its data is a `DeploymentRepo`. The data of `progress` and of the last event, `end`, is a `Deployment` without its repositories.",
})

func deploymentOrder(id, summary string) Route {
	return Route{
		ID: id, AdminToo: true, Errors: []int{409}, Summary: summary,
		Text: "A deployment that uses takt's own forge credential also needs the admin key; without it the reply is 401. Audited.",
	}
}

// CancelDeployment is POST /api/deployments/:id/cancel.
var CancelDeployment = declare[DeploymentOrder, Deployment](deployments, APIKey, scopeOperate, Write, "POST /api/deployments/:id/cancel", deploymentOrder("cancelDeployment", "End a deployment; what is not copied yet is skipped"))

// PauseDeployment is POST /api/deployments/:id/pause.
var PauseDeployment = declare[DeploymentOrder, Deployment](deployments, APIKey, scopeOperate, Write, "POST /api/deployments/:id/pause", deploymentOrder("pauseDeployment", "Stop the work on a deployment"))

// ResumeDeployment is POST /api/deployments/:id/resume.
var ResumeDeployment = declare[DeploymentOrder, Deployment](deployments, APIKey, scopeOperate, Write, "POST /api/deployments/:id/resume", deploymentOrder("resumeDeployment", "Resume a paused deployment"))

// RetryDeployment is POST /api/deployments/:id/retry.
var RetryDeployment = declare[RetryDeploymentIn, DeploymentRetried](deployments, APIKey, scopeOperate, Write, "POST /api/deployments/:id/retry", Route{
	ID: "retryDeployment", AdminToo: true, Errors: []int{409}, Summary: "Retry what failed, or was skipped because of a cancel",
})
