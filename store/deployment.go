package store

import "time"

// DeploymentState is the state of a deployment.
type DeploymentState string

// The states of a deployment. The last three are final, until a retry.
const (
	DeploymentPlanning  DeploymentState = "planning" // its repositories are being listed
	DeploymentRunning   DeploymentState = "running"
	DeploymentPaused    DeploymentState = "paused"
	DeploymentDone      DeploymentState = "done" // every repository has ended; the counts say how
	DeploymentCancelled DeploymentState = "cancelled"
	DeploymentFailed    DeploymentState = "failed" // it could not be planned
)

// Final reports whether s changes only by a retry.
func (s DeploymentState) Final() bool {
	return s == DeploymentDone || s == DeploymentCancelled || s == DeploymentFailed
}

// RepoStep is the step that the copy of a repository has reached.
type RepoStep string

// The steps of a repository. The last three are final, until a retry.
const (
	RepoPlanned   RepoStep = "planned"
	RepoCreating  RepoStep = "creating"
	RepoPushing   RepoStep = "pushing" // the target exists and takt made it
	RepoVerifying RepoStep = "verifying"
	RepoDone      RepoStep = "done"
	RepoFailed    RepoStep = "failed"
	RepoSkipped   RepoStep = "skipped" // nothing to do, or cancelled
)

// Final reports whether s changes only by a retry.
func (s RepoStep) Final() bool { return s == RepoDone || s == RepoFailed || s == RepoSkipped }

// The ways to treat archived repositories, or forks.
const (
	TakeAll  = "include"
	TakeNone = "exclude"
	TakeOnly = "only"
)

// DeploymentRequest is the order for a deployment.
type DeploymentRequest struct {
	SourceOrg string `json:"source_org"`
	TargetOrg string `json:"target_org"`
	// Include and Exclude are globs of names, case-insensitive. An empty Include means
	// all.
	Include []string `json:"include,omitempty" max:"100"`
	Exclude []string `json:"exclude,omitempty" max:"100"`
	// OnlyVisibility selects repositories of this visibility; "" selects all.
	OnlyVisibility string `json:"only_visibility,omitempty" enum:",public,private,internal"`
	// Archived and Forks are TakeAll, TakeNone or TakeOnly.
	Archived string `json:"archived,omitempty" enum:",include,exclude,only"`
	Forks    string `json:"forks,omitempty" enum:",include,exclude,only"`
	// NameTemplate makes the names of the copies: {name}, {owner}.
	NameTemplate string `json:"name_template,omitempty"`
	// Visibility is that of the copies; "keep" means the same as the source's.
	Visibility string `json:"visibility,omitempty" enum:",keep,public,private,internal"`
	// AllowPublish permits that more people can see a copy than can see its source.
	// Without it such repositories fail.
	AllowPublish bool `json:"allow_publish,omitempty"`
	// Concurrency is how many repositories are copied at once.
	Concurrency int `json:"concurrency,omitempty" min:"0" max:"32"`
	// DryRun plans the deployment and copies nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// Deployment is the copying of one organisation's repositories into another.
type Deployment struct {
	ID      string
	Request DeploymentRequest
	State   DeploymentState
	// Run fences writes: those of an earlier run are refused.
	Run int64
	// Credential is the sealed forge credential. It is nil if takt's own is used, or
	// once it is no longer needed.
	Credential []byte
	// CredentialID identifies a credential without revealing it.
	CredentialID []byte
	// Filtered is how many repositories the filters left out.
	Filtered int
	// Error says why the deployment failed; "" unless State is DeploymentFailed.
	Error                            string
	CreatedAt, PlannedAt, FinishedAt time.Time
}

// SpendsOwn reports whether d spends takt's own credential, as long as it has not ended.
func (d Deployment) SpendsOwn() bool { return d.Credential == nil && !d.State.Final() }

// RepoSource is the source forge's description of a repository.
type RepoSource struct {
	ID            int64  `json:"id"`
	URL           string `json:"url"` // to clone from
	Description   string `json:"description,omitempty"`
	DefaultBranch string `json:"default_branch,omitempty"`
	Visibility    string `json:"visibility"` // of the copy
	SizeKB        int64  `json:"size_kb,omitempty"`
	// Taken is true if the target had a repository of this name when the deployment was
	// planned.
	Taken bool `json:"taken,omitempty"`
	// Refused says why the repository can't be copied, as known at planning; "" if it
	// can.
	Refused string `json:"refused,omitempty"`
}

// DeploymentRepo is one repository of a deployment.
type DeploymentRepo struct {
	Name   string
	Target string // name of the copy
	Source RepoSource
	Step   RepoStep
	// Run fences writes: those of workers that had an earlier run are refused.
	Run int64
	// Attempts counts how often the copying was started.
	Attempts int
	// TargetID and TargetURL are those of the copy; zero until takt has made it.
	TargetID  int64
	TargetURL string
	// Refs is how many branches and tags of the copy were verified.
	Refs           int
	Error, Warning string
	// StartedAt is when the copying was first started.
	StartedAt, FinishedAt, UpdatedAt time.Time
}

// RepoChange is a worker's update of its repository.
type RepoChange struct {
	Step RepoStep
	// TargetID and TargetURL change nothing where they are zero.
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
	// Recent is how many ended within Window. Window is at most a minute, and not longer
	// than the deployment has run.
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

// Left is the number of repositories that have not ended.
func (p DeploymentProgress) Left() int {
	left := 0
	for step, n := range p.Steps {
		if !step.Final() {
			left += n
		}
	}
	return left
}

// Rate is how many repositories end per minute; 0 if unknown.
func (p DeploymentProgress) Rate() float64 {
	if p.Recent == 0 || p.Window < time.Second {
		return 0
	}
	return float64(p.Recent) / p.Window.Minutes()
}

// Remaining is how long the rest will take at that rate; 0 if unknown.
func (p DeploymentProgress) Remaining() time.Duration {
	rate := p.Rate()
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(p.Left()) / rate * float64(time.Minute))
}

// DeploymentEstimate is the estimated cost of a dry run's plan.
type DeploymentEstimate struct {
	// Calls is the number of REST calls. Took is about how long the calls and the
	// copying take.
	Calls int
	Took  time.Duration
}

// DeploymentClaim is a deployment that a controller has claimed, or is about to.
type DeploymentClaim struct {
	ID  string
	Run int64
}
