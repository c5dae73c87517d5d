package store

import (
	"strconv"
	"strings"
	"time"
)

// ThrottleConfig is how many completions an action definition of a portal may
// have in any period. It holds for each of the action's queues.
type ThrottleConfig struct {
	PortalID int64
	// ActionID is HubSpot's id of the action definition.
	ActionID      int64
	MaxThroughput int
	// The period is TimePeriod times TimeUnit.
	TimePeriod int
	TimeUnit   TimeUnit
	UpdatedAt  time.Time
}

// TimeUnit is a unit of a throttle's period.
type TimeUnit string

// The units.
const (
	Second TimeUnit = "second"
	Minute TimeUnit = "minute"
	Hour   TimeUnit = "hour"
	Day    TimeUnit = "day"
)

// Duration returns how long one unit is, 0 for an unknown one.
func (u TimeUnit) Duration() time.Duration {
	switch u {
	case Second:
		return time.Second
	case Minute:
		return time.Minute
	case Hour:
		return time.Hour
	case Day:
		return 24 * time.Hour
	default:
		return 0
	}
}

// ParseTimeUnit takes a unit in the singular or the plural, in any case.
func ParseTimeUnit(s string) (TimeUnit, bool) {
	u := TimeUnit(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(s)), "s"))
	return u, u.Duration() > 0
}

// Bounds of a throttle's settings.
const (
	MaxThroughput = 1_000_000
	// MaxThrottlePeriod is longer than HubSpot holds an action back.
	MaxThrottlePeriod = 366 * 24 * time.Hour
)

// Period is the length of the window in which MaxThroughput holds.
func (c ThrottleConfig) Period() time.Duration {
	return time.Duration(c.TimePeriod) * c.TimeUnit.Duration()
}

// Validate returns an InvalidArgument that names what is wrong.
func (c ThrottleConfig) Validate() error {
	switch {
	case c.PortalID <= 0:
		return NewError(InvalidArgument, "portal_id must be a positive integer")
	case c.ActionID <= 0:
		return NewError(InvalidArgument, "action_id must be a positive integer")
	case c.MaxThroughput < 1 || c.MaxThroughput > MaxThroughput:
		return NewError(InvalidArgument, "max_throughput must be 1 to 1000000")
	case c.TimeUnit.Duration() == 0:
		return NewError(InvalidArgument, "time_unit must be seconds, minutes, hours or days")
	case c.TimePeriod < 1 || time.Duration(c.TimePeriod) > MaxThrottlePeriod/c.TimeUnit.Duration():
		return NewError(InvalidArgument, "time_period must be a positive integer, and the period at most 366 days")
	}
	return nil
}

// QueueKey says which queue an action belongs to.
type QueueKey struct {
	PortalID int64
	// WorkflowID and Index are "unknown" and "0" where HubSpot does not say.
	WorkflowID string
	ActionID   int64
	Index      string
}

// ID is the queue's name: queue:{portal}:{workflow}:{action}:{index}.
func (k QueueKey) ID() string {
	return "queue:" + strconv.FormatInt(k.PortalID, 10) + ":" + k.WorkflowID + ":" + strconv.FormatInt(k.ActionID, 10) + ":" + k.Index
}

// Action is one execution of a workflow action that HubSpot has handed over.
type Action struct {
	Queue      QueueKey
	CallbackID string
	// Expires is when HubSpot goes on without it, from now.
	Expires time.Duration
}

// ActionState is where an action stands. All but ActionWaiting are final.
type ActionState string

// The states.
const (
	ActionWaiting   ActionState = "waiting"
	ActionCompleted ActionState = "completed"
	ActionGivenUp   ActionState = "given_up"
	ActionExpired   ActionState = "expired"
)

// Acceptance is the answer to one Action, which is durable.
type Acceptance struct {
	State ActionState
	// Repeat says that the action was here before.
	Repeat bool
	// Remaining is how long HubSpot still waits for it.
	Remaining time.Duration
}

// ThrottleJob is the job that answers for a queue having a runner while actions
// wait in it. At most one of a queue is alive.
type ThrottleJob struct {
	Queue    string `json:"queue" river:"unique"`
	PortalID int64  `json:"portal_id"`
}

// Kind names the job.
func (ThrottleJob) Kind() string { return "throttle" }

// ClaimRequest asks for actions that may be sent now.
type ClaimRequest struct {
	PortalID int64
	// Queues are ids. They are served in turn; those that come first begin.
	Queues []string
	// Limit is the most actions in all, Batch that of one call to HubSpot (zero:
	// Limit). There are at most Limit/Batch calls, and one more with Ahead.
	Limit, Batch int
	// Lease is how long they belong to their claims.
	Lease time.Duration
	// MaxLinger bounds how long budget that is back already may wait for more, so
	// that one call takes what would be many: a hundredth of the period, or less.
	MaxLinger time.Duration
	// Ahead is how long before it is back budget may be claimed; the claim then
	// says how long to wait.
	Ahead time.Duration
}

// Claims is what a request gets.
type Claims struct {
	Claims []Claim
	// Queues says of each queue when there is more to do.
	Queues []QueueDue
	// Expired is how many actions were found too late to be sent.
	Expired int
}

// Claim is the actions of one call. They belong to whoever made it, until its
// lease ends.
type Claim struct {
	Number  int64
	Actions []ClaimedAction
	// NotBefore is when the budget for it is back, by this process's clock; zero:
	// it is.
	NotBefore time.Time
}

// ClaimedAction is an action to be sent.
type ClaimedAction struct {
	Queue      string
	CallbackID string
	// GivingUp says that HubSpot is to be sent FAIL_CONTINUE.
	GivingUp bool
}

// QueueDue says when a queue can be claimed from next.
type QueueDue struct {
	Queue string
	// Waiting is false if there is nothing in it, or it is paused.
	Waiting bool
	// At is when that is, by this process's clock.
	At time.Time
	// Blocked says that the budget is spent until then, whatever comes in.
	Blocked bool
	// Period is that of its throttle.
	Period time.Duration
}

// Outcome is what became of a claim's actions, by their callback ids.
type Outcome struct {
	Claim    int64
	PortalID int64
	// Done were completed.
	Done []string
	// Failed are to be tried again after Retry, or held, or given up.
	Failed []string
	// Released are to be tried again after Retry; nothing is counted.
	Released []string
	Retry    time.Duration
	// Error is what operators read about Failed and Released.
	Error string
	// Refund gives the budget back at once: nothing was completed.
	Refund bool
	// Unanswered keeps it until the claim's end: something may still be.
	Unanswered bool
	// Ago is how long ago the last answer came: the budget comes back one period
	// after it.
	Ago  time.Duration
	Rule FailureRule
}

// FailureRule says what failures do to an action.
type FailureRule struct {
	// HoldEvery failures in a row hold it for Hold; GiveUp of them end it.
	HoldEvery, GiveUp int
	Hold              time.Duration
}

// Recorded is what an outcome did.
type Recorded struct {
	Completed, GivenUp, Failed, Held int
}

// QueueStatus is a queue as operators see it.
type QueueStatus struct {
	ID         string
	PortalID   int64
	WorkflowID string
	ActionID   int64
	Config     ThrottleConfig
	// Waiting actions, those of them that wait for a hold's end, and those under
	// way.
	Depth, Held, InFlight int
	// Oldest is when the oldest of them came; zero if there is none.
	Oldest time.Time
	// RateUsed is how much of Config.MaxThroughput is spent now.
	RateUsed int
	// NextDue is when the next one can be sent; zero if none waits.
	NextDue   time.Time
	LastError string
	Paused    bool
	// RunnerAt is when a runner said last that it looks after the queue.
	RunnerAt time.Time
}

// SealedTokens are a portal's OAuth tokens as they are kept.
type SealedTokens struct {
	PortalID int64
	Access   []byte
	Refresh  []byte
	// ExpiresIn is how long the access token is good, by the database's clock, and
	// Life how long it was when it was new.
	ExpiresIn, Life time.Duration
	Scopes          string
	// Version grows with every change.
	Version int64
}
