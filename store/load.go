package store

import "time"

// LoadSettings is what operators changed of load levelling at run time. What is
// absent is as configured. It is stored as it is.
type LoadSettings struct {
	Limits *LoadLimits `json:"limits,omitempty"`
	// Bounds are by pool, Affinity by domain.
	Bounds   map[string]LoadBounds   `json:"bounds,omitempty"`
	Affinity map[string]LoadAffinity `json:"affinity,omitempty"`
	Burst    *LoadBurst              `json:"burst,omitempty"`
}

// LoadLimits are the limits of admission.
type LoadLimits struct {
	Soft     int     `json:"soft"`
	Hard     int     `json:"hard"`
	Reserved float64 `json:"reserved"`
	Expiry
}

// LoadBounds are the fewest and the most workers of a pool.
type LoadBounds struct {
	Min int `json:"min"`
	Max int `json:"max"`
	Expiry
}

// LoadAffinity is the pools that a domain prefers; none: all of its list.
type LoadAffinity struct {
	Pools []string `json:"pools"`
	Expiry
}

// LoadBurst says whether bursts are looked for.
type LoadBurst struct {
	Enabled bool `json:"enabled"`
	Expiry
}

// Expiry is when a change ends by itself; never, if it is nil.
type Expiry struct {
	Until *time.Time `json:"until,omitempty"`
}

// Over reports whether the change has ended.
func (e Expiry) Over(now time.Time) bool { return e.Until != nil && !now.Before(*e.Until) }
