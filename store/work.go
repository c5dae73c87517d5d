package store

import "time"

// Work describes a request to those who level the load.
type Work struct {
	// Domain is what it competes with for places.
	Domain string
	// Route and ID are shown to operators.
	Route, ID string
	// Key is what it is about: requests with the same key go to the same pool, if
	// there is a choice.
	Key string
	// Limit is how long a request of this route may run; operators are shown those
	// that run longer. 0: for ever.
	Limit time.Duration
}
