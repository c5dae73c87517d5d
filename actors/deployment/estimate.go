package deployment

import (
	"time"

	"takt/actors/deployment/forge"
	"takt/store"
)

// Rate is how many repositories came to their end per minute, lately; 0 if it
// can't be told yet.
func Rate(p store.DeploymentProgress) float64 {
	if p.Recent == 0 || p.Window < time.Second {
		return 0
	}
	return float64(p.Recent) / p.Window.Minutes()
}

// Remaining is how long what is left will take at that rate; 0 if it can't be
// told.
func Remaining(p store.DeploymentProgress) time.Duration {
	rate := Rate(p)
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(p.Left()) / rate * float64(time.Minute))
}

// Estimate says what a dry run's plan would cost.
type Estimate struct {
	// Calls is the number of REST calls.
	Calls int
	// Took is about how long it takes: the longer of what the limits on creating
	// allow, and perRepo at the given concurrency.
	Took time.Duration
}

// estimate takes the number of repositories that would be made.
func estimate(make, concurrency int, limits []forge.Limit, perRepo time.Duration) Estimate {
	e := Estimate{Calls: 2 * make} // create and settle
	if concurrency > 0 {
		e.Took = perRepo * time.Duration((make+concurrency-1)/concurrency)
	}
	for _, l := range limits {
		if l.N > 0 {
			e.Took = max(e.Took, l.Per*time.Duration((make-1)/l.N))
		}
	}
	return e
}
