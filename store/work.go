package store

import "time"

// Work describes a request to those who level the load, and to operators. It is
// handed on as it is, from the HTTP server to the process that runs the request.
type Work struct {
	// Domain is what the request competes with: fleet, submit, transfer, query or
	// hook. An unknown one is a defect and fails.
	Domain string
	// Route names the request in the tree, ID is the request's own.
	Route, ID string
	// Key is what it is about: requests with the same key go to the same pool, if
	// there is a choice.
	Key string
	// Limit is how long a request of this route may usually take. One that runs
	// longer is shown to operators and counted; it is not ended.
	Limit time.Duration
	// Told, if not nil, is called when the request is told to end while it runs: at
	// most once, from another goroutine, and not any more when it has ended. It must
	// be quick.
	Told func()
}

// String names the request in the tree.
func (w *Work) String() string { return w.Route + " " + w.ID }
