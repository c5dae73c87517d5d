package forecast

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"takt/store"
)

// Step is one event of a build.
type Step struct {
	// At is zero for a future step.
	At time.Time
	// Kind is that of the log line, or uploaded; waiting, assigned or building for the present
	// state; "" for a future step.
	Kind store.LineKind
	// Mark is done, now, bad or coming.
	Mark, Title, Text string
	// Worker is the worker's id. Name is "" if the worker was deleted.
	Worker, Name string
	// Attempt is set if the step concerns one, Reason if that attempt was lost.
	Attempt int
	Reason  string
	// Build is the build that this one repeats, or that repeats this one.
	Build string
}

// The kinds of steps that are no lines of a log.
const (
	stepUploaded store.LineKind = "uploaded"
	stepWaiting  store.LineKind = "waiting"
	stepBuilding store.LineKind = "building"
)

// Past is what the database has of a build's story.
type Past struct {
	build   store.Build
	events  []store.Milestone
	waiting *store.PendingBuild // nil if it does not wait
}

// Past reads what Story needs.
func (r *Reader) Past(ctx context.Context, b store.Build) (p Past, err error) {
	p.build = b
	if b.Attempt > 1 || b.LastWorkerID != "" || b.Priority != 0 || len(b.Retries) > 0 || b.State.Final() { // otherwise the build itself holds every step
		if p.events, err = r.store.Milestones(ctx, b.ID); err != nil {
			return p, err
		}
	}
	if b.State == store.Pending {
		p.waiting, err = r.Waiting(ctx, b.ID)
	}
	return p, err
}

// Story returns the steps of a build from the kinds and facts in its log, and why it waits, nil
// if it does not. It may wait, see [Reader.Why].
func (r *Reader) Story(ctx context.Context, p Past) (steps []Step, why *Reason, err error) {
	if p.waiting != nil {
		reason, err := r.Why(ctx, p.waiting)
		if err != nil {
			return nil, nil, err
		}
		why = &reason
	}
	return storyOf(p.build, p.events, why), why, nil
}

func storyOf(b store.Build, past []store.Milestone, why *Reason) []Step {
	class := b.Class()
	steps := []Step{{At: b.SubmittedAt, Kind: store.LineSubmitted, Mark: "done", Title: "Submitted", Text: class.String() + ", priority " + strconv.Itoa(b.Priority), Build: b.RetryOf}}
	if b.RetryOf != "" {
		steps[0].Title = "Submitted as a retry of build " + b.RetryOf
	}
	assigned, since, later := false, b.SubmittedAt, []Step(nil)
	for _, m := range past {
		s := stepOf(m, since)
		switch {
		case m.Kind == store.LineAssigned:
			assigned = true
		case m.Kind == store.LineRequeued:
			since = m.At
		case m.Kind == store.LineRetried && b.State.Final() && m.At.After(b.CompletedAt):
			later = append(later, s)
			continue
		}
		steps = append(steps, s)
	}
	if !assigned && !b.StartedAt.IsZero() && b.WorkerID != "" {
		steps = append(steps, stepOf(store.Milestone{At: b.StartedAt, Kind: store.LineAssigned, WorkerID: b.WorkerID, WorkerName: b.WorkerName, Attempt: b.Attempt}, since))
	}
	state := b.State
	if state == store.Building && b.LastSeenAt.IsZero() { // a build that needs a feature is never assigned
		state = store.Assigned
	}
	switch state {
	case store.Pending:
		s := Step{Kind: stepWaiting, Mark: "now", Title: "Waiting"}
		if why != nil {
			s.Text = why.Text
		}
		return append(steps, s, Step{Mark: "coming", Title: "Building"}, Step{Mark: "coming", Title: "Done"})
	case store.Assigned:
		return append(steps, Step{Kind: store.LineAssigned, Mark: "now", Title: "Handed out", Text: "no sign of life from its worker yet", Attempt: b.Attempt}, Step{Mark: "coming", Title: "Done"})
	case store.Building:
		return append(steps, Step{At: b.StartedAt, Kind: stepBuilding, Mark: "now", Title: "Building", Text: "last heartbeat " + Rough(time.Since(b.LastSeenAt)) + " ago", Attempt: b.Attempt},
			Step{Mark: "coming", Title: "Upload"}, Step{Mark: "coming", Title: "Done"})
	case store.Completed:
		if b.Result != nil {
			steps = append(steps, Step{At: b.CompletedAt, Kind: stepUploaded, Mark: "done", Title: "Uploaded", Text: humanize.IBytes(uint64(max(b.Result.Size, 0))), Attempt: b.Attempt})
		}
		steps = append(steps, Step{At: b.CompletedAt, Kind: store.LineCompleted, Mark: "done", Title: "Completed", Attempt: b.Attempt})
	case store.Cancelled:
		steps = append(steps, Step{At: b.CompletedAt, Kind: store.LineCancelled, Mark: "done", Title: "Cancelled" + store.ByWhy(b.EndedBy, ""), Text: b.EndedWhy})
	default:
		steps = append(steps, Step{At: b.CompletedAt, Kind: store.LineFailed, Mark: "bad", Title: "Failed", Text: b.ErrorMessage, Attempt: b.Attempt})
	}
	return append(steps, later...)
}

// stepOf returns what takt recorded in the log of a build as a step. since is when it began to wait.
func stepOf(m store.Milestone, since time.Time) Step {
	s := Step{At: m.At, Kind: m.Kind, Mark: "done", Attempt: m.Attempt}
	switch m.Kind {
	case store.LineAssigned:
		s.Title, s.Worker, s.Name = "Assigned", m.WorkerID, m.WorkerName
		if s.Text = "after waiting " + Span(m.At.Sub(since)); m.Attempt > 1 {
			s.Text = "attempt " + strconv.Itoa(m.Attempt) + ", " + s.Text
		}
	case store.LineRequeued:
		s.Mark, s.Title, s.Reason = "bad", "Attempt "+strconv.Itoa(m.Attempt)+" lost", m.Facts.Reason
		s.Text = lostText(cmp.Or(m.WorkerName, m.WorkerID), m.Facts)
	case store.LinePriority:
		s.Title = fmt.Sprintf("Priority changed from %d to %d", m.Facts.From, m.Facts.To)
	case store.LineRetried:
		s.Title, s.Build = "Retried as build "+m.Facts.Build, m.Facts.Build
	default: // not a milestone
	}
	return s
}

// lostText says how worker lost its attempt.
func lostText(worker string, f store.LineFacts) string {
	if f.Reason == store.LostExit {
		return f.Error + " on worker " + worker + "; it is tried again"
	}
	how, ok := map[string][2]string{
		store.LostSilent: {"no sign of life from ", ""}, store.LostRestarted: {"", " came back without the build"},
		store.LostUnregistered: {"", " unregistered"}, store.LostDeleted: {"", " was deleted"}, store.LostRequeued: {"an operator took it from ", ""},
	}[f.Reason]
	if !ok {
		how[1] = " gave it back (" + f.Reason + ": " + f.Error + ")"
	}
	return how[0] + "worker " + worker + how[1]
}

// Span formats a duration with up to two units.
func Span(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + " s"
	case d < time.Hour:
		return twoUnits(int(d.Minutes()), "min", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return twoUnits(int(d.Hours()), "h", int(d.Minutes())%60, "min")
	default:
		return twoUnits(int(d.Hours())/24, "d", int(d.Hours())%24, "h")
	}
}

func twoUnits(a int, unit string, b int, small string) string {
	text := strconv.Itoa(a) + " " + unit
	if b > 0 {
		text += " " + strconv.Itoa(b) + " " + small
	}
	return text
}
