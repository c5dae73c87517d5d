package store

import (
	"strconv"
	"strings"
	"time"
)

// ThrottleConfig is how many completions an action definition of a portal may have in
// any period. It applies to each of the action's queues separately.
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

// Validate returns an InvalidArgument that names the fault.
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

// QueueKey identifies the queue of an action.
type QueueKey struct {
	PortalID int64
	// WorkflowID and Index are "unknown" and "0" if HubSpot does not send them.
	WorkflowID string
	ActionID   int64
	Index      string
}

// ID is the queue's name: queue:{portal}:{workflow}:{action}:{index}.
func (k QueueKey) ID() string {
	return "queue:" + strconv.FormatInt(k.PortalID, 10) + ":" + k.WorkflowID + ":" + strconv.FormatInt(k.ActionID, 10) + ":" + k.Index
}

// Action is one execution of a workflow action that HubSpot sent to takt.
type Action struct {
	Queue      QueueKey
	CallbackID string
	// Expires is how long from now HubSpot waits for the completion.
	Expires time.Duration
}

// ActionState is the state of an action. All but ActionWaiting are final.
type ActionState string

// The states.
const (
	ActionWaiting   ActionState = "waiting"
	ActionCompleted ActionState = "completed"
	ActionGivenUp   ActionState = "given_up"
	ActionExpired   ActionState = "expired"
)

// Acceptance is the answer to one Action. The action is durable by then.
type Acceptance struct {
	State ActionState
	// Repeat is true if the action was accepted before.
	Repeat bool
	// Remaining is how much longer HubSpot waits for the action.
	Remaining time.Duration
}

// ThrottleJob is the job that keeps a runner for a queue while actions wait in it. Each
// queue has at most one live job.
type ThrottleJob struct {
	Queue    string `json:"queue" river:"unique"`
	PortalID int64  `json:"portal_id"`
}

// Kind names the job.
func (ThrottleJob) Kind() string { return "throttle" }

// ClaimRequest asks for actions that may be sent now.
type ClaimRequest struct {
	PortalID int64
	// Queues are ids. They are served in turn, starting with the first.
	Queues []string
	// Limit is the most actions in all. Batch is the most actions of one call to
	// HubSpot; zero means Limit. There are at most Limit/Batch calls, and one more with
	// Ahead.
	Limit, Batch int
	// Lease is how long the actions belong to their claims.
	Lease time.Duration
	// MaxLinger bounds how long budget that is available again may wait for more, so
	// that one call replaces many. It is at most a hundredth of the period.
	MaxLinger time.Duration
	// Ahead is how long before it is available budget may be claimed. The claim then
	// says how long to wait.
	Ahead time.Duration
}

// Claims is the result of a ClaimRequest.
type Claims struct {
	Claims []Claim
	// Queues says for each queue when it can be claimed from next.
	Queues []QueueDue
	// Expired is how many actions expired before they could be sent.
	Expired int
}

// Claim is the actions of one call. They belong to the process that claimed them until
// the lease ends.
type Claim struct {
	Number  int64
	Actions []ClaimedAction
	// NotBefore is when the budget for the claim is available, by this process's clock;
	// zero means now.
	NotBefore time.Time
}

// ClaimedAction is an action to be sent.
type ClaimedAction struct {
	Queue      string
	CallbackID string
	// GivingUp is true if HubSpot gets FAIL_CONTINUE.
	GivingUp bool
}

// QueueDue says when a queue can be claimed from next.
type QueueDue struct {
	Queue string
	// Waiting is false if the queue is empty or paused.
	Waiting bool
	// At is when the queue can be claimed from, by this process's clock.
	At time.Time
	// Blocked is true if the budget is spent until At, so new actions change nothing.
	Blocked bool
	// Period is the period of the queue's throttle.
	Period time.Duration
}

// Outcome is the result of sending a claim's actions, by their callback ids.
type Outcome struct {
	Claim    int64
	PortalID int64
	// Done were completed.
	Done []string
	// Failed actions are tried again after Retry, held, or given up.
	Failed []string
	// Released actions are tried again after Retry. No failure is counted.
	Released []string
	Retry    time.Duration
	// Error is the text that operators see for Failed and Released.
	Error string
	// Refund returns the budget at once, because nothing was completed.
	Refund bool
	// Unanswered keeps the budget until the claim ends, because HubSpot may still
	// complete something.
	Unanswered bool
	// Ago is how long ago the last answer came. The budget is available again one period
	// after it.
	Ago  time.Duration
	Rule FailureRule
}

// FailureRule says what failures do to an action.
type FailureRule struct {
	// HoldEvery failures in a row hold the action for Hold. GiveUp failures in a row end
	// it.
	HoldEvery, GiveUp int
	Hold              time.Duration
}

// Recorded is the effect of an Outcome.
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
	// Depth counts waiting actions, Held those of them that wait for the end of a hold,
	// InFlight those being sent.
	Depth, Held, InFlight int
	// Completed is how many actions were completed since the queue exists. Those that
	// were completed before release 0.2.0 are not counted.
	Completed int64
	// Oldest is when the oldest waiting action came; zero if there is none.
	Oldest time.Time
	// RateUsed is how much of Config.MaxThroughput is spent now.
	RateUsed int
	// NextDue is when the next action can be sent; zero if none waits.
	NextDue   time.Time
	LastError string
	Paused    bool
	// RunnerAt is when a runner last reported that it serves the queue.
	RunnerAt time.Time
	// Key is the value by which a list is sorted.
	Key int64
}

// SealedTokens are a portal's OAuth tokens as they are stored.
type SealedTokens struct {
	PortalID int64
	Access   []byte
	Refresh  []byte
	// ExpiresIn is how long the access token is still valid, by the database's clock.
	// Life is how long it was valid when it was new.
	ExpiresIn, Life time.Duration
	Scopes          string
	// Version grows with every change.
	Version int64
}
