package store

// Invariant is a condition that the database always meets, and the result of a check of
// it.
type Invariant struct {
	// Name is its stable name, such as "worker_held".
	Name string `json:"name"`
	// Promise is the condition in words.
	Promise string `json:"promise"`
	// Broken counts the rows that violate it. Examples names up to five of them.
	Broken   int64    `json:"broken" min:"0"`
	Examples []string `json:"examples" max:"5"`
	// Repairable is true if a repair exists that loses no data.
	Repairable bool `json:"repairable"`
	// Repaired counts the rows that this check has repaired.
	Repaired int64 `json:"repaired" min:"0"`
}
