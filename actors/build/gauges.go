package build

import "sync/atomic"

// gauges are QueueManager's figures. They outlive its incarnations; everything
// but the counters is overwritten by the next one.
type gauges struct {
	pending               depth
	lined, flying, parked atomic.Int64

	batches, polls, assigned, redelivered, failed, woken atomic.Int64
}

// QueueStats are QueueManager's figures.
type QueueStats struct {
	// Pending is about how many builds wait.
	Pending int
	// Lined polls wait for a batch, Flying ones are in one, Parked ones wait for
	// a build.
	Lined, Flying, Parked int
	// Since the process started: transactions and the polls in them; builds
	// handed out for the first time and again; polls that ended with an error;
	// wake-ups of parked polls.
	Batches, Polls, Assigned, Redelivered, Failed, Woken int64
}

func (g *gauges) stats() QueueStats {
	return QueueStats{
		Pending: g.pending.of(everything),
		Lined:   int(g.lined.Load()), Flying: int(g.flying.Load()), Parked: int(g.parked.Load()),
		Batches: g.batches.Load(), Polls: g.polls.Load(), Assigned: g.assigned.Load(),
		Redelivered: g.redelivered.Load(), Failed: g.failed.Load(), Woken: g.woken.Load(),
	}
}

// flew counts what a flight did.
func (g *gauges) flew(f *flight) {
	g.batches.Add(int64(maxTries - f.tries))
	g.polls.Add(int64(len(f.polls)))
	for i := range f.landings {
		switch l := &f.landings[i]; {
		case l.err != nil:
			g.failed.Add(1)
		case l.Job != nil && l.Redelivered:
			g.redelivered.Add(1)
		case l.Job != nil:
			g.assigned.Add(1)
		}
	}
}
