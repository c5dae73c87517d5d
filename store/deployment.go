package store

import "time"

// DeploymentState is where a deployment stands.
type DeploymentState string

// The states of a deployment. The last three are final, until a retry.
const (
	DeploymentPlanning  DeploymentState = "planning" // its repositories are being listed
	DeploymentRunning   DeploymentState = "running"
	DeploymentPaused    DeploymentState = "paused"
	DeploymentDone      DeploymentState = "done" // every repository is; the counts say how
	DeploymentCancelled DeploymentState = "cancelled"
	DeploymentFailed    DeploymentState = "failed" // it could not be planned
)

// Final reports whether nothing happens any more by itself.
func (s DeploymentState) Final() bool {
	return s == DeploymentDone || s == DeploymentCancelled || s == DeploymentFailed
}

// RepoStep is how far the copy of a repository is.
type RepoStep string

// The steps of a repository. The last three are final, until a retry.
const (
	RepoPlanned   RepoStep = "planned"
	RepoCreating  RepoStep = "creating"
	RepoPushing   RepoStep = "pushing" // the target is made and ours
	RepoVerifying RepoStep = "verifying"
	RepoDone      RepoStep = "done"
	RepoFailed    RepoStep = "failed"
	RepoSkipped   RepoStep = "skipped" // nothing to do, or cancelled
)

// Final reports whether the step is an end.
func (s RepoStep) Final() bool { return s == RepoDone || s == RepoFailed || s == RepoSkipped }

// Which archived repositories, or forks, a deployment takes.
const (
	TakeAll  = "include"
	TakeNone = "exclude"
	TakeOnly = "only"
)

// DeploymentRequest is what a deployment was asked to do.
type DeploymentRequest struct {
	SourceOrg string `json:"source_org"`
	TargetOrg string `json:"target_org"`
	// Include and Exclude are globs of names, case-insensitive; no Include means
	// all.
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
	// OnlyVisibility takes repositories of that visibility only; "" takes all.
	OnlyVisibility string `json:"only_visibility,omitempty"`
	// Archived and Forks are TakeAll, TakeNone or TakeOnly.
	Archived string `json:"archived,omitempty"`
	Forks    string `json:"forks,omitempty"`
	// NameTemplate makes the names of the copies: {name}, {owner}.
	NameTemplate string `json:"name_template,omitempty"`
	// Visibility is that of the copies; "keep" takes over the source's.
	Visibility string `json:"visibility,omitempty"`
	// AllowPublish lets a copy be seen by more people than its source.
	AllowPublish bool `json:"allow_publish,omitempty"`
	// Concurrency is how many repositories are copied at once.
	Concurrency int `json:"concurrency,omitempty"`
	// DryRun finds out what would be done, and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// Deployment is the copying of one organisation's repositories into another.
type Deployment struct {
	ID      string
	Request DeploymentRequest
	State   DeploymentState
	// Run fences the writes of those who worked on it before.
	Run int64
	// Credential is the forge credential, sealed; nil where takt's own is used,
	// and once it is not needed any more.
	Credential []byte
	// CredentialID tells credentials apart without giving them away.
	CredentialID []byte
	// Filtered is how many repositories the filters left out.
	Filtered int
	// Error is why it failed, "" unless State is DeploymentFailed.
	Error                            string
	CreatedAt, PlannedAt, FinishedAt time.Time
}

// RepoSource is what the source's forge says of a repository.
type RepoSource struct {
	ID            int64  `json:"id"`
	URL           string `json:"url"` // to clone from
	Description   string `json:"description,omitempty"`
	DefaultBranch string `json:"default_branch,omitempty"`
	Visibility    string `json:"visibility"` // that the copy gets
	SizeKB        int64  `json:"size_kb,omitempty"`
	// Taken says that the target had a repository of this name when the
	// deployment was planned.
	Taken bool `json:"taken,omitempty"`
	// Refused is why it can't be copied, known when it was planned; "" if it can.
	Refused string `json:"refused,omitempty"`
}

// DeploymentRepo is one repository of a deployment.
type DeploymentRepo struct {
	Name   string
	Target string // name of the copy
	Source RepoSource
	Step   RepoStep
	// Run fences the writes of workers that had it before.
	Run int64
	// Attempts counts the times that it was taken up.
	Attempts int
	// TargetID and TargetURL are those of the copy, once it is ours.
	TargetID  int64
	TargetURL string
	// Refs is how many branches and tags the copy has, verified.
	Refs           int
	Error, Warning string
	// StartedAt is when it was first taken up.
	StartedAt, FinishedAt, UpdatedAt time.Time
}

// RepoChange is what a worker writes of its repository.
type RepoChange struct {
	Step RepoStep
	// TargetID and TargetURL are kept as they were where they are zero.
	TargetID       int64
	TargetURL      string
	Made           bool // the target was just made
	Refs           int
	Error, Warning string
}

// DeploymentProgress counts a deployment's repositories.
type DeploymentProgress struct {
	Steps map[RepoStep]int
	// Refs is the number of branches and tags in finished copies.
	Refs int
	// Recent is how many ended within Window, which is at most a minute and not
	// longer than the deployment runs.
	Recent int
	Window time.Duration
}

// Total is the number of planned repositories.
func (p DeploymentProgress) Total() int {
	total := 0
	for _, n := range p.Steps {
		total += n
	}
	return total
}

// Left is how many have not come to an end.
func (p DeploymentProgress) Left() int {
	left := 0
	for step, n := range p.Steps {
		if !step.Final() {
			left += n
		}
	}
	return left
}

// Rate is how many repositories come to their end per minute; 0 if it can't be
// told.
func (p DeploymentProgress) Rate() float64 {
	if p.Recent == 0 || p.Window < time.Second {
		return 0
	}
	return float64(p.Recent) / p.Window.Minutes()
}

// Remaining is how long what is left will take at that rate; 0 if it can't be
// told.
func (p DeploymentProgress) Remaining() time.Duration {
	rate := p.Rate()
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(p.Left()) / rate * float64(time.Minute))
}

// DeploymentEstimate is what the plan of a dry run would cost.
type DeploymentEstimate struct {
	// Calls is the number of REST calls, Took about how long they and the copying
	// take.
	Calls int
	Took  time.Duration
}

// DeploymentClaim is a deployment that a controller is to work on, or has.
type DeploymentClaim struct {
	ID  string
	Run int64
}

// DeploymentRetry says which repositories are to be tried again.
type DeploymentRetry struct {
	// Repo is a name; "" means all that failed, and those that a cancel skipped.
	Repo string
	// Credential replaces the one that was wiped; nil for takt's own.
	Credential   []byte
	CredentialID []byte
}
