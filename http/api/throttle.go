package api

// ThrottleConfig is how many completions an action definition of a portal may have
// in any period: the reply of POST /api/config and GET /api/config/…. The period is
// time_period time_units.
type ThrottleConfig struct {
	PortalID      int64  `json:"portal_id"`
	ActionID      int64  `json:"action_id"`
	MaxThroughput int    `json:"max_throughput"`
	TimePeriod    int    `json:"time_period"`
	TimeUnit      string `json:"time_unit"` // second, minute, hour or day
	UpdatedAt     string `json:"updated_at,omitempty"`
}

// ThrottleConfigs is the reply of GET /api/config/:portal_id.
type ThrottleConfigs struct {
	Configs []ThrottleConfig `json:"configs"`
}

// Installed is the reply of GET /api/oauth/callback.
type Installed struct {
	Status   string `json:"status"` // installed
	PortalID int64  `json:"portal_id"`
}

// ThrottleQueue is one queue of GET /admin/throttle/queues. Times are null where
// there is nothing to tell.
type ThrottleQueue struct {
	ID         string `json:"id"`
	PortalID   int64  `json:"portal_id"`
	WorkflowID string `json:"workflow_id"`
	ActionID   int64  `json:"action_id"`
	// Depth is how many actions wait; of these, Held wait for the end of a pause
	// after failures and InFlight for HubSpot's answer.
	Depth    int     `json:"depth"`
	Held     int     `json:"held"`
	InFlight int     `json:"in_flight"`
	Oldest   *string `json:"oldest"`
	// RateUsed is how much of MaxThroughput is spent now.
	RateUsed      int     `json:"rate_used"`
	MaxThroughput int     `json:"max_throughput"`
	TimePeriod    int     `json:"time_period"`
	TimeUnit      string  `json:"time_unit"`
	NextDue       *string `json:"next_due"`
	LastError     *string `json:"last_error"`
	Paused        bool    `json:"paused"`
	RunnerAt      *string `json:"runner_at"`
}

// ThrottleQueues is the reply of GET /admin/throttle/queues, those with the oldest
// waiting action first.
type ThrottleQueues struct {
	Queues []ThrottleQueue `json:"queues"`
}

// ThrottleOrder is the body of POST /admin/throttle/….
type ThrottleOrder struct {
	// Reason is why, for the audit.
	Reason string `json:"reason,omitempty"`
}

// Redriven is the reply of POST /admin/throttle/queues/:id/redrive.
type Redriven struct {
	// Actions is how many are tried again now.
	Actions int           `json:"actions"`
	Queue   ThrottleQueue `json:"queue"`
}

// Rekeyed is the reply of POST /admin/throttle/rekey.
type Rekeyed struct {
	// Portals is how many portals' tokens were sealed anew.
	Portals int `json:"portals"`
}
