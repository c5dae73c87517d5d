package store

import (
	"encoding/json"
	"time"
)

// What follows is what the pages of the dashboard show: lists that are read page by
// page. A page goes on after the last row of the one before.

// The states of a worker as people see it: its status, unless something keeps
// builds from it.
const (
	WorkerDraining = "draining"
	WorkerCritical = "critical"
)

// FleetFilter selects workers and orders them; empty fields match all.
type FleetFilter struct {
	// Name is a part of the name, or the id.
	Name string
	// State is a WorkerStatus, WorkerDraining or WorkerCritical.
	State    string
	Platform Platform
	// Sort is name, state, used, success or seen.
	Sort string
	// AfterKey and AfterID are those of the last row of the page before.
	AfterKey, AfterID string
	Limit             int
}

// FleetRow is a worker in a list.
type FleetRow struct {
	WorkerDetail
	// State is as in FleetFilter.
	State string
	// Key is where it stands in the order.
	Key string
}

// FleetSummary counts the workers that take one platform.
type FleetSummary struct {
	Platform Platform
	// Known workers are all of them. Able ones are online and get builds; Draining
	// and Critical ones are online and don't.
	Known, Able, Draining, Critical int
	// Slots and Held are those of able workers.
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
	// Position orders the queue. Number counts the builds of its platform up to
	// this one.
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
	// Progress is the last that its worker said, in percent; nil if it said none.
	Progress *int
	// Seq orders the list.
	Seq int64
}

// Durations are how long builds of a platform took, from their last assignment to
// their end: the quartiles and the ninth decile of Count builds.
type Durations struct {
	Platform                     Platform
	Count                        int
	Quarter, Median, Most, Ninth time.Duration
}

// BuildSearch selects builds, newest first; empty fields match all.
type BuildSearch struct {
	States   []BuildState
	Platform Platform
	// Label and Value are one label.
	Label, Value string
	// Since and Until bound the time of submission.
	Since, Until time.Time
	// Before is the last build of the page before.
	Before string
	Limit  int
}

// Milestone is a line of a build's log that takt wrote itself.
type Milestone struct {
	At      time.Time
	Level   Level
	Message string
}

// AuditFilter selects entries, newest first.
type AuditFilter struct {
	// Text is a part of the actor, the action or the target; "" is all.
	Text string
	// Before is the last entry of the page before; 0 is none.
	Before int64
	Limit  int
}

// Pulse is how busy the queue is at a moment.
type Pulse struct {
	// At is the database's time.
	At                         time.Time
	PendingIOS, PendingAndroid int
	Running                    int
	// Submitted is the number of the last build.
	Submitted int64
	// Started builds were assigned since the pulse before, after waiting for
	// Waited on average.
	Started int
	Waited  time.Duration
}

// Named is something with an id that was searched for by a name.
type Named struct{ ID, Name string }

// Version is what a worker says of its program in its capabilities, "" if it says
// nothing.
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
