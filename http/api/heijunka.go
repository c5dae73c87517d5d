package api

import "takt/store"

// Heijunka is the reply of GET /admin/heijunka and of the routes that change it. It
// and its parts are the store's types.
type Heijunka = store.HeijunkaStatus

type (
	// HeijunkaRebalance is the move of a place, or the reason why none moved.
	HeijunkaRebalance = store.HeijunkaRebalance
	// HeijunkaBurst says whether demand has jumped.
	HeijunkaBurst = store.HeijunkaBursts
)

// HeijunkaLimits is the body of PUT /admin/heijunka/limits. Absent members stay as
// they are.
type HeijunkaLimits struct {
	SoftLimit *int     `json:"soft_limit,omitempty" min:"1"`
	HardLimit *int     `json:"hard_limit,omitempty" min:"1"`
	Reserved  *float64 `json:"reserved,omitempty" min:"0" under:"1"`
	// Reset undoes earlier changes.
	Reset bool `json:"reset,omitempty"`
	// For is how long it holds, such as 2h; for ever without.
	For    string `json:"for,omitempty"`
	Reason string `json:"reason" min:"1" max:"1000"`
}

// Check implements [Checker].
func (h *HeijunkaLimits) Check() error {
	if err := checkChange(&h.Reason, h.For); err != nil {
		return err
	}
	if some := h.SoftLimit != nil || h.HardLimit != nil || h.Reserved != nil; some == h.Reset {
		return invalid("soft_limit, hard_limit or reserved required, or else reset")
	}
	return nil
}

// HeijunkaScale is the body of POST /admin/heijunka/pools/:name/scale. by or workers
// changes the pool now, and scaling continues from there; min and max bound it.
type HeijunkaScale struct {
	By *int `json:"by,omitempty"`
	// Workers is the number of the pool's places.
	Workers *int `json:"workers,omitempty" min:"1"`
	Min     *int `json:"min,omitempty" min:"1"`
	Max     *int `json:"max,omitempty" min:"1"`
	// Reset restores the configured min and max.
	Reset bool `json:"reset,omitempty"`
	// For is how long Min and Max hold, such as 2h; for ever without.
	For    string `json:"for,omitempty"`
	Reason string `json:"reason" min:"1" max:"1000"`
}

// Bounds reports whether the pool's bounds are to change.
func (h *HeijunkaScale) Bounds() bool { return h.Min != nil || h.Max != nil }

// Check implements [Checker].
func (h *HeijunkaScale) Check() error {
	if err := checkChange(&h.Reason, h.For); err != nil {
		return err
	}
	given := 0
	for _, yes := range [...]bool{h.By != nil, h.Workers != nil, h.Bounds(), h.Reset} {
		if yes {
			given++
		}
	}
	switch {
	case given != 1:
		return invalid("one of by, workers, reset, or min and max required")
	case h.For != "" && !h.Bounds():
		return invalid("for belongs to min and max: scaling goes on after by and workers")
	}
	return nil
}

// HeijunkaAffinity is the body of PUT /admin/heijunka/affinity: the pools that a
// domain prefers. An empty list means all of its pools.
type HeijunkaAffinity struct {
	Domain string   `json:"domain"`
	Pools  []string `json:"pools,omitempty"`
	// Reset makes the domain prefer its own pool again, which is the default.
	Reset bool `json:"reset,omitempty"`
	// For is how long it holds, such as 2h; for ever without.
	For    string `json:"for,omitempty"`
	Reason string `json:"reason" min:"1" max:"1000"`
}

// Check implements [Checker].
func (h *HeijunkaAffinity) Check() error {
	if err := checkChange(&h.Reason, h.For); err != nil {
		return err
	}
	switch {
	case h.Domain == "":
		return invalid("domain required")
	case h.Reset && len(h.Pools) > 0:
		return invalid("pools or reset, not both")
	case h.Reset && h.For != "":
		return invalid("for does not belong to reset")
	}
	return nil
}

// HeijunkaSurge is the body of POST /admin/heijunka/surge. Action start or stop
// controls a manual surge; enable or disable controls burst detection.
type HeijunkaSurge struct {
	Action string `json:"action" enum:"start,stop,enable,disable"`
	// For is how long it holds, such as 2h; for ever without.
	For    string `json:"for,omitempty"`
	Reason string `json:"reason" min:"1" max:"1000"`
}

// Check implements [Checker].
func (h *HeijunkaSurge) Check() error {
	if err := checkChange(&h.Reason, h.For); err != nil {
		return err
	}
	switch h.Action {
	case "start", "enable", "disable":
	case "stop":
		if h.For != "" {
			return invalid("for does not belong to stop")
		}
	default:
		return invalid("action must be start, stop, enable or disable")
	}
	return nil
}

// ScalePoolIn is the input of ScalePool.
type ScalePoolIn struct {
	Name string        `path:"name"`
	Body HeijunkaScale `body:"json"`
}

// RebalanceHeijunkaIn is the input of RebalanceHeijunka.
type RebalanceHeijunkaIn struct {
	// DryRun only says what would be done.
	DryRun bool   `query:"dry_run"`
	Body   Reason `body:"json"`
}

// ShowHeijunka is GET /admin/heijunka.
var ShowHeijunka = declare[None, Heijunka](operators, AdminKey, scopeOperate, Ops, "GET /admin/heijunka", Route{ID: "showHeijunka", Summary: "Show how the load is levelled"})

// ChangeHeijunkaLimits is PUT /admin/heijunka/limits.
var ChangeHeijunkaLimits = declare[HeijunkaLimits, Heijunka](operators, AdminKey, scopeOperate, Ops, "PUT /admin/heijunka/limits", Route{
	ID: "changeHeijunkaLimits", Summary: "Change the limits of admission",
})

// ChangeHeijunkaAffinity is PUT /admin/heijunka/affinity.
var ChangeHeijunkaAffinity = declare[HeijunkaAffinity, Heijunka](operators, AdminKey, scopeOperate, Ops, "PUT /admin/heijunka/affinity", Route{
	ID: "changeHeijunkaAffinity", Errors: []int{404}, Summary: "Change the pools that a domain prefers",
})

// RebalanceHeijunka is POST /admin/heijunka/rebalance.
var RebalanceHeijunka = declare[RebalanceHeijunkaIn, HeijunkaRebalance](operators, AdminKey, scopeOperate, Ops, "POST /admin/heijunka/rebalance", Route{
	ID: "rebalanceHeijunka", Errors: []int{409}, Takes: Order{}, Summary: "Move a place from the least to the most loaded pool",
})

// SurgeHeijunka is POST /admin/heijunka/surge.
var SurgeHeijunka = declare[HeijunkaSurge, Heijunka](operators, AdminKey, scopeOperate, Ops, "POST /admin/heijunka/surge", Route{
	ID: "surgeHeijunka", Errors: []int{409}, Summary: "Start or stop a surge, or the detection of bursts",
})

// ScalePool is POST /admin/heijunka/pools/:name/scale.
var ScalePool = declare[ScalePoolIn, Heijunka](operators, AdminKey, scopeOperate, Ops, "POST /admin/heijunka/pools/:name/scale", Route{
	ID: "scalePool", Errors: []int{409}, Summary: "Change the size of a pool, or its bounds",
})
