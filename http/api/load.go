package api

import "takt/store"

// Load is the reply of GET /admin/heijunka, and of what changes it. It is the
// store's, as are its parts.
type Load = store.LoadStatus

type (
	// LoadRegulator is the gate.
	LoadRegulator = store.LoadRegulator
	// LoadHolder is a request that was admitted.
	LoadHolder = store.LoadHolder
	// LoadPool is one pool.
	LoadPool = store.LoadPool
	// LoadBalance says how evenly pools are used.
	LoadBalance = store.LoadBalance
	// LoadRebalance is a move of a place, or why there is none.
	LoadRebalance = store.LoadRebalance
	// LoadStanding is a pool as rebalancing sees it.
	LoadStanding = store.LoadStanding
	// LoadBurst says whether demand has jumped.
	LoadBurst = store.LoadBursts
)

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
