package store

import (
	"encoding/json"
	"time"
)

// The types below are what the dashboard shows. Their lists are read in pages; a page
// starts after the last row of the previous page.

// The states of a worker as operators see it: its status, unless it gets no builds for
// another reason.
const (
	WorkerDraining    = "draining"
	WorkerQuarantined = "quarantined"
	WorkerCritical    = "critical"
)

// FleetFilter selects workers and orders them; empty fields match all.
type FleetFilter struct {
	// Name is a part of the name, or the id.
	Name string
	// State is a WorkerStatus or one of the constants above.
	State    string
	Platform Platform
	// Sort is name, state, used, success or seen.
	Sort string
	// AfterKey and AfterID are those of the last row of the previous page.
	AfterKey, AfterID string
	Limit             int
}

// FleetRow is a worker in a list.
type FleetRow struct {
	WorkerDetail
	// State is as in FleetFilter.
	State string
	// Key is the value by which the list is sorted.
	Key string
}

// FleetSummary counts the workers that take one platform.
type FleetSummary struct {
	Platform Platform
	// Known counts all workers. Able ones are online and get builds. Draining, Critical
	// and Quarantined ones are online and get none.
	Known, Able, Draining, Critical, Quarantined int
	// Slots and Held are the sums over able workers.
	Slots, Held int
}

// PendingBuild is a build that waits.
type PendingBuild struct {
	ID          string
	Platform    Platform
	Priority    int
	Labels      Labels
	SubmittedAt time.Time
	Attempt     int
	// Position orders the queue. Number is the rank of the build among those of its
	// platform, from 1.
	Position int64
	Number   int
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

// BuildSearch selects builds, newest first; empty fields match all.
type BuildSearch struct {
	States   []BuildState
	Platform Platform
	// Label and Value select builds with this label.
	Label, Value string
	// Since and Until bound the time of submission.
	Since, Until time.Time
	// Before is the last build of the previous page.
	Before string
	Limit  int
}

// Milestone is a step in a build's life, read from a line that takt wrote into its log.
type Milestone struct {
	At   time.Time
	Kind LineKind
	// WorkerID and Attempt are set if the step concerns an attempt. WorkerName is "" if the
	// worker was deleted.
	WorkerID, WorkerName string
	Attempt              int
	Facts                LineFacts
}

// AuditFilter selects entries, newest first.
type AuditFilter struct {
	// Text is a part of the actor, the action or the target; "" matches all.
	Text string
	// Before is the last entry of the previous page; 0 for the first page.
	Before int64
	Limit  int
}

// Pulse is how busy the queue is at one moment.
type Pulse struct {
	// At is the database's time.
	At                         time.Time
	PendingIOS, PendingAndroid int
	Running                    int
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
