package store

import (
	"encoding/json"
	"time"
)

// The types below are the dashboard's data and the filters of its lists.

// The states of a worker as operators see it: its status, unless it gets no builds for
// another reason.
const (
	// WorkerSilent has no build and has not polled for 90 s, or for a minute longer than its
	// polls wait. Or the connection of its parked poll closed, and no poll came for 10 s. Or it has
	// builds and has sent no sign of life for a minute, nor for four times as long as it took in
	// any of them.
	WorkerSilent = "silent"
	// WorkerLeaving takes no more builds and unregisters when those that it has have ended.
	WorkerLeaving     = "leaving"
	WorkerDraining    = "draining"
	WorkerQuarantined = "quarantined"
	WorkerCritical    = "critical"
	// WorkerSuspect is suspect, whether it rests or is served as before.
	WorkerSuspect = "suspect"
	// WorkerLeft has unregistered.
	WorkerLeft = "left"
)

// WorkerStates returns all states, problems first.
func WorkerStates() []string {
	return []string{WorkerCritical, WorkerSuspect, WorkerQuarantined, string(Offline), WorkerSilent, WorkerLeaving, WorkerDraining, string(Busy), string(Idle), WorkerLeft}
}

// WorkerFilter selects workers and orders them; empty fields match all.
type WorkerFilter struct {
	Status WorkerStatus
	// Name is a part of the name, or the id.
	Name string
	// State is as in WorkerDetail.
	State    string
	Platform Platform
	// Sort is name, state, used, success or seen; "" is the order of their first
	// registrations.
	Sort string
	// Present leaves out workers that unregistered over a day ago.
	Present bool
}

// FleetSummary counts the workers that take one class of work, and the builds that wait for them. With
// the number 0 it counts all workers and all builds.
type FleetSummary struct {
	Class Class
	// Known counts the workers that have not unregistered, Online those that were seen within two
	// minutes, as nodesOnline of the public statistics does. Able ones get builds. Leaving, Draining,
	// Critical, Quarantined and Suspect ones poll and get none, or a trial now and then. Silent ones do not poll.
	Known, Online, Able, Leaving, Draining, Critical, Quarantined, Suspect, Silent int
	// Slots and Held are the sums over able workers. Free are the slots without a build of
	// those that poll.
	Slots, Held, Free int
	// Pending counts the builds that wait.
	Pending int
}

// MaxEnded bounds Figures.Ended, and MaxRunning the length of Figures.Running.
const (
	MaxEnded   = 5000
	MaxRunning = 2000
)

// Figures are the overview's numbers beside FleetSummary.
type Figures struct {
	// Now is the database's time.
	Now time.Time
	// Oldest is since when the build that has waited longest waits; zero if none does.
	Oldest time.Time
	// Ended counts the last builds that completed or failed within an hour. Failed is a part
	// of it.
	Ended, Failed int
	// Disk is how full the fullest disk of a worker is, in percent, as reported within two
	// minutes; 0 if none was.
	Disk             float64
	DiskID, DiskName string
	// Copies counts the files that wait for their copy in S3, up to 1000.
	Copies int
	// Throttled and Deployed say whether there is any throttle queue, and any deployment.
	Throttled, Deployed bool
	Running             []HeldBuild
}

// ManyFailed reports whether so many of the builds that ended have failed that somebody should look.
func ManyFailed(failed, ended int) bool { return failed > 2 && failed*4 >= ended }

// HeldBuild is a build that a worker holds, with what decides who gets its slot next.
type HeldBuild struct {
	Platform Platform
	// Seconds is how long it has run.
	Seconds float64
	// Able is whether its worker gets builds. Platforms and Labels are the worker's.
	Able      bool
	Platforms []Platform
	Labels    Labels
}

// PendingBuild is a build that waits.
type PendingBuild struct {
	ID       string
	Platform Platform
	Priority int
	Labels   Labels
	Since    time.Time // it waits since then
	Attempt  int
	// Position orders the queue, and Seq builds of one position. Place is the rank of the build in it, Number the rank among
	// those of its class, both from 1.
	Position      int64
	Place, Number int
	ClassID       int32
	Require       Require
	Seq           int64
	// Own counts the builds of its own submitter and class before it; nil if they were not counted.
	Own *int
	// Due is when it is tried again after an attempt that ended as Ended says; zero unless it waits
	// for that.
	Due   time.Time
	Ended Ended
}

// RunningBuild is a build that a worker holds.
type RunningBuild struct {
	ID                   string
	Platform             Platform
	State                BuildState
	Priority             int
	WorkerID, WorkerName string
	StartedAt            time.Time
	LastSeenAt           time.Time
	Attempt              int
	// Progress is the last progress that its worker reported, in percent; nil if none.
	Progress *int
	Labels   Labels
	// Seq orders the list.
	Seq int64
}

// Durations are how long Count builds of a platform took, from their last assignment to
// their end: the quartiles and the ninth decile.
type Durations struct {
	Platform                     Platform
	Count                        int
	Quarter, Median, Most, Ninth time.Duration
}

// Milestone is a step of a build, read from a line that takt wrote into its log.
type Milestone struct {
	At   time.Time
	Kind LineKind
	// WorkerID and Attempt are set if the step concerns an attempt. WorkerName is "" if the
	// worker was deleted.
	WorkerID, WorkerName string
	Attempt              int
	Facts                LineFacts
}

// Pulse is how busy the queue is at one moment.
type Pulse struct {
	// At is the database's time.
	At      time.Time
	Running int
	// Submitted is the number of the last build.
	Submitted int64
	// Started counts builds assigned since the previous pulse. Waited is how long they
	// waited on average.
	Started int
	Waited  time.Duration
}

// Named is the id and the name of something found by its name.
type Named struct{ ID, Name string }

// Version returns the version of its program that a worker reports in its capabilities;
// "" if it reports none.
func (w Worker) Version() string {
	var c struct {
		Version      string `json:"version"`
		AgentVersion string `json:"agentVersion"`
	}
	if json.Unmarshal(w.Capabilities, &c) != nil {
		return ""
	}
	if c.Version != "" {
		return c.Version
	}
	return c.AgentVersion
}
