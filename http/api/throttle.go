package api

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"takt/store"
)

// ThrottleConfig is how many completions an action definition of a portal may have in
// any period. It is the reply of POST /api/config and GET /api/config/…. The period
// is time_period time_units.
type ThrottleConfig struct {
	PortalID      int64  `json:"portal_id"`
	ActionID      int64  `json:"action_id"`
	MaxThroughput int    `json:"max_throughput" min:"1"`
	TimePeriod    int    `json:"time_period" min:"1"`
	TimeUnit      string `json:"time_unit" enum:"second,minute,hour,day"`
	UpdatedAt     string `json:"updated_at,omitempty" schema:"Time" required:"true"`
}

// NewThrottleConfig converts a rate.
func NewThrottleConfig(c store.ThrottleConfig) ThrottleConfig {
	return ThrottleConfig{
		PortalID: c.PortalID, ActionID: c.ActionID, MaxThroughput: c.MaxThroughput,
		TimePeriod: c.TimePeriod, TimeUnit: string(c.TimeUnit), UpdatedAt: FormatTime(c.UpdatedAt),
	}
}

// ReadThrottleConfig reads and checks the body of POST /api/config. It accepts every
// name that clients have used for a member, and numbers as strings, because HubSpot's
// own forms send these. Its error is InvalidArgument and may be shown.
func ReadThrottleConfig(body map[string]json.RawMessage) (c store.ThrottleConfig, err error) {
	member := func(names []string) json.RawMessage {
		for _, n := range names {
			if v := body[n]; !store.Absent(v) {
				return v
			}
		}
		return nil
	}
	number := func(most int64, names ...string) int64 {
		n, ok := whole(member(names))
		if (!ok || n > most) && err == nil {
			err = store.NewError(store.InvalidArgument, names[0]+" must be a positive integer")
		}
		return n
	}
	const large = 1 << 62
	c.PortalID = number(large, "portal_id", "portalId")
	c.ActionID = number(large, "action_id", "actionId", "actionDefinitionId")
	c.MaxThroughput = int(number(math.MaxInt32, "max_throughput", "maxThroughput", "maxThroughPut"))
	c.TimePeriod = int(number(math.MaxInt32, "time_period", "timePeriod", "time"))
	if err != nil {
		return c, err
	}
	var unit string
	_ = json.Unmarshal(member([]string{"time_unit", "timeUnit", "period"}), &unit) // a value that is no string is an unknown unit
	var ok bool
	if c.TimeUnit, ok = store.ParseTimeUnit(unit); !ok {
		return c, store.NewError(store.InvalidArgument, "time_unit must be seconds, minutes, hours or days")
	}
	return c, c.Validate()
}

// whole reads a positive number, or a string that holds one.
func whole(raw json.RawMessage) (int64, bool) {
	text := string(raw)
	_ = json.Unmarshal(raw, &text) // text stays as it is unless raw is a string
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil && n > 0
}

// ThrottleConfigs is the reply of GET /api/config/:portal_id.
type ThrottleConfigs struct {
	Configs []ThrottleConfig `json:"configs"`
}

// Installed is the reply of GET /api/oauth/callback.
type Installed struct {
	Status   string `json:"status" const:"installed"`
	PortalID int64  `json:"portal_id"`
}

// ThrottleQueue is one queue of GET /admin/throttle/queues. Absent times are null.
type ThrottleQueue struct {
	ID         string `json:"id"`
	PortalID   int64  `json:"portal_id"`
	WorkflowID string `json:"workflow_id"`
	ActionID   int64  `json:"action_id"`
	// Depth is how many actions wait. Held of them wait for the end of a back-off after
	// failures; InFlight of them wait for HubSpot's answer.
	Depth    int `json:"depth"`
	Held     int `json:"held"`
	InFlight int `json:"in_flight"`
	// Completed is how many were completed since the queue exists.
	Completed int64   `json:"completed" format:"int64"`
	Oldest    *string `json:"oldest"`
	// RateUsed is how much of MaxThroughput is used now.
	RateUsed      int     `json:"rate_used"`
	MaxThroughput int     `json:"max_throughput" min:"1"`
	TimePeriod    int     `json:"time_period" min:"1"`
	TimeUnit      string  `json:"time_unit" enum:"second,minute,hour,day"`
	NextDue       *string `json:"next_due"`
	LastError     *string `json:"last_error"`
	Paused        bool    `json:"paused"`
	RunnerAt      *string `json:"runner_at"`
}

// NewThrottleQueue converts a queue.
func NewThrottleQueue(q store.QueueStatus) ThrottleQueue {
	when := func(t time.Time) *string {
		if t.IsZero() {
			return nil
		}
		return optional(FormatTime(t))
	}
	return ThrottleQueue{
		ID: q.ID, PortalID: q.PortalID, WorkflowID: q.WorkflowID, ActionID: q.ActionID,
		Depth: q.Depth, Held: q.Held, InFlight: q.InFlight, Completed: q.Completed, Oldest: when(q.Oldest), RateUsed: q.RateUsed,
		MaxThroughput: q.Config.MaxThroughput, TimePeriod: q.Config.TimePeriod, TimeUnit: string(q.Config.TimeUnit),
		NextDue: when(q.NextDue), LastError: optional(q.LastError), Paused: q.Paused, RunnerAt: when(q.RunnerAt),
	}
}

// ThrottleQueues is the reply of GET /admin/throttle/queues. The queue with the
// oldest waiting action comes first.
type ThrottleQueues struct {
	Queues []ThrottleQueue `json:"queues"`
}

// ThrottleOrder is the body of POST /admin/throttle/….
type ThrottleOrder struct {
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// Check implements [Checker].
func (o *ThrottleOrder) Check() error { return cleanReason(&o.Reason) }

// Redriven is the reply of POST /admin/throttle/queues/:id/redrive.
type Redriven struct {
	// Actions is how many actions are retried now.
	Actions int           `json:"actions"`
	Queue   ThrottleQueue `json:"queue"`
}

// InstallPortalIn is the input of InstallPortal.
type InstallPortalIn struct {
	State string `query:"state" required:"true"`
	Code  string `query:"code" required:"true"`
}

// ListRatesIn is the input of ListRates.
type ListRatesIn struct {
	PortalID HubSpotID `path:"portal_id"`
	Paging
}

// RatePath is the input of ShowRate.
type RatePath struct {
	PortalID HubSpotID `path:"portal_id"`
	ActionID HubSpotID `path:"action_id"`
}

// DeleteRateIn is the input of DeleteRate.
type DeleteRateIn struct {
	RatePath
	Why
}

// SetRateIn is the input of SetRate.
type SetRateIn struct {
	ThrottleConfig
	// Reason goes into the audit.
	Reason string `json:"reason,omitempty" max:"1000"`
}

// ShowQueuesIn is the input of ShowQueues.
type ShowQueuesIn struct {
	Portal int64 `query:"portal" min:"1" invalid:"portal must be a positive integer"`
	Limit  int   `query:"limit" min:"1" max:"1000" default:"100"`
	Continue
}

// QueuePath is the input of ShowQueue.
type QueuePath struct {
	// ID is queue:{portal}:{workflow}:{action}:{index}.
	ID string `path:"id"`
}

// QueueOrderIn is the input of PauseQueue, ResumeQueue and RedriveQueue.
type QueueOrderIn struct {
	// ID is queue:{portal}:{workflow}:{action}:{index}.
	ID   string        `path:"id"`
	Body ThrottleOrder `body:"json"`
}

// TakeAction is POST /api/hubspot/action.
var TakeAction = declare[None, None](throttle, Public, scopeNone, Hook, "POST /api/hubspot/action", Route{
	ID: "takeAction", Body: WebhookBody, Errors: []int{401}, Takes: map[string]any{}, Summary: "Take a workflow action from HubSpot",
	Sends:   []any{Named("ActionReply")},
	Replies: []Reply{{Status: 204}},
	Text:    "Signed by HubSpot (version 1, 2 or 3; a version 3 that is there and wrong is refused). Answered when the action is durable: a waiting one with 204 or, if the controller is set to block, with BLOCK and the time that remains; a repeat by its state. 400 also if nobody has set a rate for it.",
})

// AuthorizePortal is GET /api/oauth/authorize.
var AuthorizePortal = declare[None, None](throttle, Public, scopeNone, Write, "GET /api/oauth/authorize", Route{
	ID: "authorizePortal", Status: 302, Errors: []int{400}, Summary: "Send an installer to HubSpot's page",
})

// InstallPortal is GET /api/oauth/callback.
var InstallPortal = declare[InstallPortalIn, Installed](throttle, Public, scopeNone, Write, "GET /api/oauth/callback", Route{
	ID: "installPortal", Summary: "Complete an installation",
})

// SetRate is POST /api/config.
var SetRate = declare[SetRateIn, ThrottleConfig](throttle, APIKey, scopeWebhook, Write, "POST /api/config", Route{
	ID: "setRate", Takes: Named("ThrottleRate"), Summary: "Set how many completions an action may have in any period",
	Text: "It applies at once, also to waiting actions. Numbers may be strings.",
})

// ListRates is GET /api/config/:portal_id.
var ListRates = declare[ListRatesIn, ThrottleConfigs](throttle, APIKey, scopeWebhook, Query, "GET /api/config/:portal_id", Route{
	ID: "listRates", Headers: paged, Summary: "List a portal's rates",
})

// ShowRate is GET /api/config/:portal_id/:action_id.
var ShowRate = declare[RatePath, ThrottleConfig](throttle, APIKey, scopeWebhook, Query, "GET /api/config/:portal_id/:action_id", Route{
	ID: "showRate", Errors: []int{404}, Summary: "Show an action's rate",
})

// DeleteRate is DELETE /api/config/:portal_id/:action_id.
var DeleteRate = declare[DeleteRateIn, None](throttle, APIKey, scopeWebhook, Write, "DELETE /api/config/:portal_id/:action_id", Route{
	ID: "deleteRate", Status: 204, Errors: []int{404}, Summary: "Delete a rate: new actions are refused, waiting ones keep it",
})

// ShowQueues is GET /admin/throttle/queues.
var ShowQueues = declare[ShowQueuesIn, ThrottleQueues](throttleOrders, AdminKey, scopeOperate, Ops, "GET /admin/throttle/queues", Route{
	ID: "showQueues", Headers: paged, Summary: "Show queues, those with the oldest waiting action first",
})

// ShowQueue is GET /admin/throttle/queues/:id.
var ShowQueue = declare[QueuePath, ThrottleQueue](throttleOrders, AdminKey, scopeOperate, Ops, "GET /admin/throttle/queues/:id", Route{ID: "showQueue", Summary: "Show a queue"})

// PauseQueue is POST /admin/throttle/queues/:id/pause.
var PauseQueue = declare[QueueOrderIn, ThrottleQueue](throttleOrders, AdminKey, scopeOperate, Ops, "POST /admin/throttle/queues/:id/pause", Route{
	ID: "pauseQueue", Summary: "Pause a queue",
})

// ResumeQueue is POST /admin/throttle/queues/:id/resume.
var ResumeQueue = declare[QueueOrderIn, ThrottleQueue](throttleOrders, AdminKey, scopeOperate, Ops, "POST /admin/throttle/queues/:id/resume", Route{
	ID: "resumeQueue", Summary: "Resume a queue",
})

// RedriveQueue is POST /admin/throttle/queues/:id/redrive.
var RedriveQueue = declare[QueueOrderIn, Redriven](throttleOrders, AdminKey, scopeOperate, Ops, "POST /admin/throttle/queues/:id/redrive", Route{
	ID: "redriveQueue", Summary: "Retry now what failed",
})
