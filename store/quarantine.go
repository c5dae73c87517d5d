package store

import (
	"fmt"
	"strings"
	"time"
)

// Fault is the cause of a failed attempt, as reported by its worker.
type Fault string

// The faults. Any other value, also none, counts as the build's.
const (
	FaultBuild   Fault = "build"
	FaultCommand Fault = "command" // the build command could not be started
	FaultEngine  Fault = "engine"  // the container engine failed
	FaultDisk    Fault = "disk"    // the worker could not write its own files
)

// WorkerFaults returns the faults that are the worker's own: another worker may well run
// the build.
func WorkerFaults() []Fault { return []Fault{FaultCommand, FaultEngine, FaultDisk} }

// OfWorker reports whether f is one of WorkerFaults.
func (f Fault) OfWorker() bool { return f == FaultCommand || f == FaultEngine || f == FaultDisk }

// MaxGiveBacks is how often a build is given back by workers that can't run it, before it
// fails.
const MaxGiveBacks = 5

// QuarantineRule quarantines a worker when Faults of its last Attempts ended by its own
// fault, or failed there and completed on another worker. The zero rule quarantines none.
type QuarantineRule struct{ Faults, Attempts int }

// MaxQuarantineAttempts is the largest QuarantineRule.Attempts.
const MaxQuarantineAttempts = 100

const (
	// faultRest is how long a worker gets no builds after a fault of its own, so that
	// another worker takes the build that it gave back.
	faultRest = 30 * time.Second
	// firstQuarantine is the first back-off of a quarantine. Each trial build that ends by
	// the worker's own fault doubles it, up to lastQuarantine.
	firstQuarantine = time.Minute
	lastQuarantine  = 30 * time.Minute
)

// The letters of WorkerHealth.Attempts. Earlier releases write other for a failed one.
const (
	ownFault  = "f" // it ended by the worker's own fault
	failed    = "b" // the build failed
	elsewhere = "e" // the build failed, and its retry completed on another worker
	other     = "."
)

// WorkerHealth is the record of a worker's last attempts.
type WorkerHealth struct {
	// Attempts are the last ones, newest first, a letter each (see the constants).
	Attempts string
	// Quarantine is why the worker is quarantined; "" if it is not.
	Quarantine string
	// Backoffs counts those since it last ran a build.
	Backoffs int
	// Resting is true while it gets no builds. After its rest, a quarantined worker gets
	// one build at a time, as a trial.
	Resting bool
}

// Ended records how an attempt ended, and returns how long the worker gets no
// builds from now on; 0 leaves that as it is. Any end but the worker's own fault shows
// that the worker can run builds, so it ends a quarantine unless the build was handed out
// before that.
func (h *WorkerHealth) Ended(rule QuarantineRule, r Result) (rest time.Duration) {
	own, quarantined, letter := r.Fault.OfWorker(), h.Quarantine != "", other
	switch {
	case !own && quarantined && !h.Resting:
		*h = WorkerHealth{}
		return 0
	case own:
		letter = ownFault
	case !r.Success:
		letter = failed
	}
	h.Attempts = letter + h.Attempts
	h.Attempts = h.Attempts[:min(len(h.Attempts), max(rule.Attempts, SuspectAfter))]
	switch {
	case !own || quarantined && h.Resting:
		return 0
	case rule.Faults == 0:
		*h = WorkerHealth{}
		return faultRest
	}
	return h.judge(rule, faultRest, string(r.Fault), r.ErrorMessage)
}

// CompletedElsewhere records that a build that failed here was completed by another worker.
// It returns what Ended does.
func (h *WorkerHealth) CompletedElsewhere(rule QuarantineRule, build string) (rest time.Duration) {
	if rule.Faults == 0 || h.Quarantine != "" || !strings.Contains(h.Attempts, failed) {
		return 0
	}
	h.Attempts = strings.Replace(h.Attempts, failed, elsewhere, 1)
	return h.judge(rule, 0, "completed elsewhere", "build "+build)
}

// judge quarantines the worker if its last attempts demand that. rest is returned if not.
func (h *WorkerHealth) judge(rule QuarantineRule, rest time.Duration, cause, message string) time.Duration {
	last := h.Attempts[:min(len(h.Attempts), rule.Attempts)]
	own, lost := strings.Count(last, ownFault), strings.Count(last, elsewhere)
	if h.Quarantine == "" && own+lost < rule.Faults {
		return rest
	}
	how := "ended by this worker's own fault"
	if lost > 0 {
		how += " or failed here and completed on another worker"
	}
	h.Quarantine = fmt.Sprintf("%d of the last %d attempts %s. The last one (%s): %s", own+lost, len(last), how, cause, OneLine(message))
	h.Backoffs++
	return min(firstQuarantine<<min(h.Backoffs-1, 8), lastQuarantine)
}

// GiveBack is what became of a build that a worker could not run.
type GiveBack struct {
	// State is Pending, or Failed if the build was given back too often.
	State BuildState
	// Repeat is true if the worker had reported this before; then nothing was changed.
	Repeat bool
	// Quarantined is why the worker has been quarantined by this; "" if it has not. Status
	// is the worker's.
	Quarantined string
	Status      WorkerStatus
}
