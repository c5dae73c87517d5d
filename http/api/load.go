package api

import "takt/store"

// What GET /admin/heijunka replies, and whatever changes it, is the store's.
type (
	Load          = store.LoadStatus
	LoadRegulator = store.LoadRegulator
	LoadHolder    = store.LoadHolder
	LoadPool      = store.LoadPool
	LoadBalance   = store.LoadBalance
	LoadRebalance = store.LoadRebalance
	LoadStanding  = store.LoadStanding
	LoadBurst     = store.LoadBursts
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
