package api

import "takt/store"

// Heijunka is the reply of GET /admin/heijunka and of the routes that change it. It
// and its parts are the store's types.
type Heijunka = store.HeijunkaStatus

type (
	// HeijunkaRegulator is the state and the limits of admission.
	HeijunkaRegulator = store.HeijunkaRegulator
	// HeijunkaHolder is an admitted request.
	HeijunkaHolder = store.HeijunkaHolder
	// HeijunkaPool is one pool.
	HeijunkaPool = store.HeijunkaPool
	// HeijunkaBalance says how evenly the pools are used.
	HeijunkaBalance = store.HeijunkaBalance
	// HeijunkaRebalance is the move of a place, or the reason why none moved.
	HeijunkaRebalance = store.HeijunkaRebalance
	// HeijunkaPoolUse is a pool as rebalancing sees it.
	HeijunkaPoolUse = store.HeijunkaPoolUse
	// HeijunkaBurst says whether demand has jumped.
	HeijunkaBurst = store.HeijunkaBursts
)

// HeijunkaLimits is the body of PUT /admin/heijunka/limits. Absent members stay as
// they are. For is how long the change holds, such as "2h"; empty means for ever.
type HeijunkaLimits struct {
	SoftLimit *int     `json:"soft_limit,omitempty"`
	HardLimit *int     `json:"hard_limit,omitempty"`
	Reserved  *float64 `json:"reserved,omitempty"`
	// Reset undoes earlier changes.
	Reset  bool   `json:"reset,omitempty"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}

// HeijunkaScale is the body of POST /admin/heijunka/pools/:name/scale. by or workers
// changes the pool now, and scaling continues from there; min and max bound it.
type HeijunkaScale struct {
	By      *int `json:"by,omitempty"`
	Workers *int `json:"workers,omitempty"`
	Min     *int `json:"min,omitempty"`
	Max     *int `json:"max,omitempty"`
	// Reset restores the configured min and max.
	Reset  bool   `json:"reset,omitempty"`
	For    string `json:"for,omitempty"` // how long min and max hold
	Reason string `json:"reason"`
}

// HeijunkaAffinity is the body of PUT /admin/heijunka/affinity: the pools that a
// domain prefers. An empty list means all of its pools.
type HeijunkaAffinity struct {
	Domain string   `json:"domain"`
	Pools  []string `json:"pools,omitempty"`
	// Reset makes the domain prefer its own pool again, which is the default.
	Reset  bool   `json:"reset,omitempty"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}

// HeijunkaSurge is the body of POST /admin/heijunka/surge. Action start or stop
// controls a manual surge; enable or disable controls burst detection.
type HeijunkaSurge struct {
	Action string `json:"action"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}
