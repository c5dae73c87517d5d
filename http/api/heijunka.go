package api

import "takt/store"

// Heijunka is the reply of GET /admin/heijunka, and of what changes it. It is the
// store's, as are its parts.
type Heijunka = store.HeijunkaStatus

type (
	// HeijunkaRegulator is the gate.
	HeijunkaRegulator = store.HeijunkaRegulator
	// HeijunkaHolder is a request that was admitted.
	HeijunkaHolder = store.HeijunkaHolder
	// HeijunkaPool is one pool.
	HeijunkaPool = store.HeijunkaPool
	// HeijunkaBalance says how evenly pools are used.
	HeijunkaBalance = store.HeijunkaBalance
	// HeijunkaRebalance is a move of a place, or why there is none.
	HeijunkaRebalance = store.HeijunkaRebalance
	// HeijunkaPoolUse is a pool as rebalancing sees it.
	HeijunkaPoolUse = store.HeijunkaPoolUse
	// HeijunkaBurst says whether demand has jumped.
	HeijunkaBurst = store.HeijunkaBursts
)

// HeijunkaLimits is the body of PUT /admin/heijunka/limits. What is absent stays as
// it is. For is how long it holds, such as "2h"; for ever if it is empty.
type HeijunkaLimits struct {
	SoftLimit *int     `json:"soft_limit,omitempty"`
	HardLimit *int     `json:"hard_limit,omitempty"`
	Reserved  *float64 `json:"reserved,omitempty"`
	// Reset takes back what was changed.
	Reset  bool   `json:"reset,omitempty"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}

// HeijunkaScale is the body of POST /admin/heijunka/pools/:name/scale: by or workers
// changes the pool now, and scaling goes on from there; min and max bound it.
type HeijunkaScale struct {
	By      *int   `json:"by,omitempty"`
	Workers *int   `json:"workers,omitempty"`
	Min     *int   `json:"min,omitempty"`
	Max     *int   `json:"max,omitempty"`
	For     string `json:"for,omitempty"` // of min and max
	Reason  string `json:"reason"`
}

// HeijunkaAffinity is the body of PUT /admin/heijunka/affinity: the pools that a
// domain prefers, all of its list if there are none.
type HeijunkaAffinity struct {
	Domain string   `json:"domain"`
	Pools  []string `json:"pools"`
	For    string   `json:"for,omitempty"`
	Reason string   `json:"reason"`
}

// HeijunkaSurge is the body of POST /admin/heijunka/surge. Action is start or stop,
// of a surge by hand, or enable or disable, of the detection of bursts.
type HeijunkaSurge struct {
	Action string `json:"action"`
	For    string `json:"for,omitempty"`
	Reason string `json:"reason"`
}
