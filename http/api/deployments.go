package api

// DeploymentRequest is the body of POST /api/deployments.
type DeploymentRequest struct {
	SourceOrg string `json:"source_org"`
	TargetOrg string `json:"target_org"`
	// Include and Exclude are globs of names; their case does not count.
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
	// OnlyVisibility takes public, private or internal repositories only.
	OnlyVisibility string `json:"only_visibility,omitempty"`
	// Archived and Forks are include (the default), exclude or only.
	Archived string `json:"archived,omitempty"`
	Forks    string `json:"forks,omitempty"`
	// NameTemplate makes the names of the copies: {name}, {owner}.
	NameTemplate string `json:"name_template,omitempty"`
	// Visibility of the copies: keep (the default), public, private or internal.
	Visibility string `json:"visibility,omitempty"`
	// Concurrency is how many repositories are copied at once, 1 to 32.
	Concurrency int `json:"concurrency,omitempty"`
	// DryRun finds out what would be done, and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
	// Token is the forge credential; without it takt's own is used. It is never
	// shown again.
	Token string `json:"token,omitempty"`
}

// DeploymentCounts are a deployment's repositories by step.
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

// Left is how many have not come to their end.
func (c DeploymentCounts) Left() int { return c.Total - c.Done - c.Failed - c.Skipped }

// DeploymentPlan is what a dry run found out.
type DeploymentPlan struct {
	Create   int `json:"create"`
	Skip     int `json:"skip"`     // the target has them already, the same
	Conflict int `json:"conflict"` // the target has others of that name, or they can't be copied
	// Calls is how many REST calls it would take, Seconds about how long.
	Calls   int     `json:"calls"`
	Seconds float64 `json:"seconds"`
}

// Deployment is one deployment, as POST /api/deployments, GET
// /api/deployments/:id and the list show it.
type Deployment struct {
	ID string `json:"id"`
	// State is planning, running, paused, done, cancelled or failed.
	State string `json:"state"`
	// Request is what was asked for, without the credential.
	Request DeploymentRequest `json:"request"`
	Counts  DeploymentCounts  `json:"counts"`
	// Filtered is how many repositories the filters left out.
	Filtered int `json:"filtered"`
	// Refs is the number of branches and tags in finished copies.
	Refs int `json:"refs"`
	// RatePerMinute is how many repositories came to their end lately;
	// ETASeconds how long the rest will take at that rate. Null if it can't be
	// told.
	RatePerMinute *float64 `json:"rate_per_minute"`
	ETASeconds    *float64 `json:"eta_seconds"`
	Error         *string  `json:"error"`
	CreatedAt     Millis   `json:"created_at"`
	PlannedAt     *Millis  `json:"planned_at"`
	FinishedAt    *Millis  `json:"finished_at"`
	// Plan is what a dry run found out, once it is done; else left out.
	Plan *DeploymentPlan `json:"plan,omitempty"`
	// Repos is present in GET /api/deployments/:id, unless ?repos=0.
	Repos []DeploymentRepo `json:"repos,omitempty"`
}

// Ended reports whether nothing happens any more by itself.
func (d Deployment) Ended() bool {
	return d.State == "done" || d.State == "cancelled" || d.State == "failed"
}

// DeploymentRepo is one repository of a deployment.
type DeploymentRepo struct {
	Name   string `json:"name"`
	Target string `json:"target"`
	// Step is planned, creating, pushing, verifying, done, failed or skipped.
	Step     string `json:"step"`
	Attempts int    `json:"attempts"`
	// Refs is how many branches and tags the copy has, each one verified.
	Refs int `json:"refs"`
	// DurationMS is from its first attempt to its end, or to now.
	DurationMS *int64  `json:"duration_ms"`
	Error      *string `json:"error"`
	Warning    *string `json:"warning"`
}

// Deployments is the reply of GET /api/deployments, newest first.
type Deployments struct {
	Deployments []Deployment `json:"deployments"`
}

// DeploymentRetry is the body of POST /api/deployments/:id/retry.
type DeploymentRetry struct {
	// Repo is the one to try again; "" means all that failed or that a cancel
	// skipped.
	Repo string `json:"repo,omitempty"`
	// Token is the forge credential, needed anew once a deployment has ended.
	Token string `json:"token,omitempty"`
}

// DeploymentRetried is the reply to it.
type DeploymentRetried struct {
	Retried int `json:"retried"`
}
