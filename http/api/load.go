package api

import "encoding/json"

// Load is the reply of GET /admin/heijunka, and of what changes it.
type Load struct {
	// Enabled is false if requests are let through unlevelled.
	Enabled   bool          `json:"enabled"`
	Regulator LoadRegulator `json:"regulator"`
	Pools     []LoadPool    `json:"pools"`
	Balance   LoadBalance   `json:"balance"`
	Burst     LoadBurst     `json:"burst"`
	// Changed is what operators have changed and is not over: limits, bounds by
	// pool, affinity by domain, burst, each with the time until which it holds.
	Changed json.RawMessage `json:"changed"`
}

// LoadRegulator is the gate.
type LoadRegulator struct {
	Level        string  `json:"level"` // normal, alert or critical
	Load         int     `json:"load"`  // admitted at the moment
	SoftLimit    int     `json:"soft_limit"`
	HardLimit    int     `json:"hard_limit"`
	Reserved     float64 `json:"reserved"`
	RegularLimit int     `json:"regular_limit"`
	AlertLimit   int     `json:"alert_limit"`
	// Since the start of takt.
	Accepted        int64 `json:"accepted"`
	RejectedRegular int64 `json:"rejected_regular"`
	RejectedHard    int64 `json:"rejected_hard"`
	// DrainRate is how many end per second.
	DrainRate float64      `json:"drain_rate"`
	Oldest    []LoadHolder `json:"oldest"`
}

// LoadHolder is a request that was admitted.
type LoadHolder struct {
	Domain    string `json:"domain"`
	Route     string `json:"route"`
	RequestID string `json:"request_id"`
	AgeMS     int64  `json:"age_ms"`
}

// LoadPool is one pool of workers.
type LoadPool struct {
	Name        string  `json:"name"`
	Health      string  `json:"health"` // healthy, degraded or critical
	Workers     int     `json:"workers"`
	Available   int     `json:"available"`
	Busy        int     `json:"busy"`
	Utilisation float64 `json:"utilisation"`
	QueueLength int     `json:"queue_length"`
	QueuePeak   int     `json:"queue_peak"`
	Target      int     `json:"target"`
	Surge       int     `json:"surge"`
	Min         int     `json:"min"`
	Max         int     `json:"max"`
	Overflow    int     `json:"overflow"`
	// Of the last minute.
	AverageLatencyMS float64 `json:"average_latency_ms"`
	ErrorRate        float64 `json:"error_rate"`
	LastScalingAt    *Millis `json:"last_scaling_at"`
	// Since the start of takt.
	Scalings  int64 `json:"scalings"`
	Processed int64 `json:"processed"`
	Failed    int64 `json:"failed"`
	Refused   int64 `json:"refused"`
	Expired   int64 `json:"expired"`
	Crashed   int64 `json:"crashed"`
}

// LoadBalance says how evenly pools are used.
type LoadBalance struct {
	Coefficient float64             `json:"coefficient"`
	Moves       int64               `json:"moves"`
	Last        *LoadRebalance      `json:"last"`
	Affinity    map[string][]string `json:"affinity"`
	Spilled     map[string]int64    `json:"spilled"`
}

// LoadRebalance is a move of a worker, or why there is none.
type LoadRebalance struct {
	Coefficient float64        `json:"coefficient"`
	From        string         `json:"from"`
	To          string         `json:"to"`
	Reason      string         `json:"reason"`
	Done        bool           `json:"done"`
	At          *Millis        `json:"at"`
	Pools       []LoadStanding `json:"pools"`
}

// LoadStanding is a pool as rebalancing sees it.
type LoadStanding struct {
	Name        string  `json:"name"`
	Utilisation float64 `json:"utilisation"`
	Demand      float64 `json:"demand"` // requests per worker
	Workers     int     `json:"workers"`
	Min         int     `json:"min"`
	Max         int     `json:"max"`
}

// LoadBurst says whether demand has jumped.
type LoadBurst struct {
	Enabled         bool    `json:"enabled"`
	Active          bool    `json:"active"`
	Demand          float64 `json:"demand"`
	Baseline        float64 `json:"baseline"`
	BeganAt         *Millis `json:"began_at"`
	Until           *Millis `json:"until"`
	TriggerDemand   float64 `json:"trigger_demand"`
	TriggerBaseline float64 `json:"trigger_baseline"`
	Manual          bool    `json:"manual"`
	Events          int64   `json:"events"`
	WorkersAdded    int64   `json:"workers_added"`
	Cost            float64 `json:"cost"`
}

// LoadLimits is the body of PUT /admin/heijunka/limits. What is absent stays as
// it is. For is how long it holds, such as "2h"; for ever if it is empty.
type LoadLimits struct {
	SoftLimit *int     `json:"soft_limit,omitempty"`
	HardLimit *int     `json:"hard_limit,omitempty"`
	Reserved  *float64 `json:"reserved,omitempty"`
	// Reset takes back what was changed.
	Reset  bool   `json:"reset,omitempty"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}

// LoadScale is the body of POST /admin/heijunka/pools/:name/scale: by or workers
// changes the pool now, and scaling goes on from there; min and max bound it.
type LoadScale struct {
	By      *int   `json:"by,omitempty"`
	Workers *int   `json:"workers,omitempty"`
	Min     *int   `json:"min,omitempty"`
	Max     *int   `json:"max,omitempty"`
	For     string `json:"for,omitempty"` // of min and max
	Reason  string `json:"reason"`
}

// LoadAffinity is the body of PUT /admin/heijunka/affinity: the pools that a
// domain prefers, all of its list if there are none.
type LoadAffinity struct {
	Domain string   `json:"domain"`
	Pools  []string `json:"pools"`
	For    string   `json:"for,omitempty"`
	Reason string   `json:"reason"`
}

// LoadSurge is the body of POST /admin/heijunka/surge. Action is start or stop,
// of a surge by hand, or enable or disable, of the detection of bursts.
type LoadSurge struct {
	Action string `json:"action"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}
