package store

// Invariant is a promise that the database keeps at every moment, and how a check
// of it went.
type Invariant struct {
	// Name is its stable name, such as "worker_held".
	Name string `json:"name"`
	// Promise says what holds.
	Promise string `json:"promise"`
	// Broken counts the rows that break it, Examples names up to five of them.
	Broken   int64    `json:"broken"`
	Examples []string `json:"examples"`
	// Repairable is true if there is a repair that loses nothing.
	Repairable bool `json:"repairable"`
	// Repaired counts the rows that this check has repaired.
	Repaired int64 `json:"repaired"`
}
