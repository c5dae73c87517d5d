package store

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	// SuspectAfter is how many attempts in a row fail before a worker may be suspect.
	SuspectAfter = 5
	// suspectTrials is how many trials in a row a suspect must complete.
	suspectTrials = 2
	// suspectLikes is how many builds others must complete if builds have no labels.
	suspectLikes = 3
	// MaxJudged bounds the builds by which workers are judged.
	MaxJudged = 5000
	// JudgedAge is how long ago they ended at most.
	JudgedAge = 24 * time.Hour
)

// Suspicion is what a worker's row says of it as a suspect. A suspect rests, and gets one build as
// a trial after each rest, until it has completed two of them in a row.
type Suspicion struct {
	Suspect bool
	// Served is true while it gets builds as before, because too few others can take a class.
	Served bool
	// Rests counts its rests, Trials the trials that it completed in a row.
	Rests, Trials int
}

// SuspectRest returns how long a suspect rests for the nth time.
func SuspectRest(n int) time.Duration {
	return min(firstQuarantine<<min(max(n-1, 0), 8), lastQuarantine)
}

// Ended records how an attempt ended on the worker, and returns how long it rests from now on; 0
// leaves that as it is. What ends while it rests was handed out before, so it is no trial.
func (s *Suspicion) Ended(r Result, resting bool) (rest time.Duration) {
	switch {
	case !s.Suspect || r.Fault.OfWorker() || resting:
	case r.Success:
		if s.Trials++; s.Trials == suspectTrials {
			*s = Suspicion{}
		}
	case s.Served:
		s.Trials = 0
	default:
		s.Trials = 0
		s.Rests++
		return SuspectRest(s.Rests)
	}
	return 0
}

// EndedBuild is a build that a worker completed, or that its command failed there.
type EndedBuild struct {
	Build     int64 // its Seq
	Worker    string
	Class     int32
	Completed bool
	At        time.Time
	// Source identifies the source: a build whose source failed on two workers is to blame itself.
	Source string
	// App and Branch are its labels.
	App, Branch string
}

// Like reports whether two builds are of one class, application and branch.
func (o EndedBuild) Like(p EndedBuild) bool {
	return o.Class == p.Class && o.App == p.App && o.Branch == p.Branch
}

// Accused is a worker that gets builds or would, and is suspect or whose last SuspectAfter attempts
// failed.
type Accused struct {
	ID        string
	Platforms []Platform
	Labels    Labels
	Suspicion
	Classes []Class // in which the builds of a suspect failed
}

// Verdict is what becomes of an Accused. Why is "" if it was suspect before.
type Verdict struct {
	ID, Why string
	Served  bool
	Rest    time.Duration // unless Served
	Failed  []int64       // the builds because of which it is suspect
	Classes []int32       // theirs
}

// Trial is the input of JudgeSuspects: what all controllers read from the database.
type Trial struct {
	// Able are the workers that get builds or are suspect, the accused among them.
	Able    []FleetGroup
	Accused []Accused
	// Waiting are the classes with pending builds, Known those of the ended ones.
	Waiting, Known []Class
	Ended          []EndedBuild // newest first
}

// accusation is what speaks against an accused worker.
type accusation struct {
	*Accused
	why    string
	failed []EndedBuild
}

// JudgeSuspects decides which accused workers are suspect, and which suspects rest. A worker is
// suspect if SuspectAfter attempts or more in a row failed there, of two sources at least, while
// others completed the like (see against). Of the workers that can take a class, at most half rest,
// rounded down: those that rest already, then the worst. The other suspects are served as before.
func (t *Trial) JudgeSuspects() (verdicts []Verdict) {
	elsewhere := t.failedOn()
	var all []accusation
	for i := range t.Accused {
		a := accusation{Accused: &t.Accused[i]}
		if !a.Suspect {
			if a.why, a.failed = t.against(a.ID, elsewhere); a.why == "" {
				continue
			}
			for _, o := range a.failed {
				if i := slices.IndexFunc(t.Known, func(c Class) bool { return c.ID == o.Class }); i >= 0 && !slices.ContainsFunc(a.Classes, func(c Class) bool { return c.ID == o.Class }) {
					a.Classes = append(a.Classes, t.Known[i])
				}
			}
		}
		all = append(all, a)
	}
	rank := func(a accusation) int {
		switch {
		case a.Suspect && !a.Served:
			return 0
		case a.Suspect:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b accusation) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(b.failed), len(a.failed)), cmp.Compare(a.ID, b.ID))
	})
	resting := map[int32]int{}
	for _, a := range all {
		takes := slices.DeleteFunc(slices.Concat(a.Classes, t.Waiting), func(c Class) bool { return !c.TakenBy(a.Platforms, a.Labels) })
		full := func(c Class) bool { return resting[c.ID] >= t.able(&c)/2 }
		v := Verdict{ID: a.ID, Why: a.why, Served: slices.ContainsFunc(takes, full), Rest: SuspectRest(a.Rests)}
		switch {
		case v.Served && !a.Suspect && slices.ContainsFunc(a.Classes, full): // there is nobody else to compare it with
			continue
		case !v.Served:
			for _, id := range idsOf(takes) {
				resting[id]++
			}
		}
		for _, o := range a.failed {
			v.Failed = append(v.Failed, o.Build)
		}
		v.Classes = idsOf(a.Classes)
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// idsOf returns the numbers of classes, each once.
func idsOf(classes []Class) (ids []int32) {
	for _, c := range classes {
		if !slices.Contains(ids, c.ID) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// able returns how many of the Able can take c.
func (t *Trial) able(c *Class) (n int) {
	for i := range t.Able {
		if t.Able[i].Takes(c) {
			n += t.Able[i].N
		}
	}
	return n
}

// failedOn returns on which worker each source failed, "" if it failed on several.
func (t *Trial) failedOn() map[string]string {
	on := map[string]string{}
	for _, o := range t.Ended {
		if worker, known := on[o.Source]; !o.Completed && known && worker != o.Worker {
			on[o.Source] = ""
		} else if !o.Completed {
			on[o.Source] = o.Worker
		}
	}
	return on
}

// against returns why a worker is suspect, and its builds that failed since it last completed one;
// "" if it is not suspect. Builds whose source failed on another worker too don't count. Others must
// have completed a build since the first of them that is like one of them; if none of them has
// labels, three of their classes.
func (t *Trial) against(worker string, on map[string]string) (why string, failed []EndedBuild) {
	all, sources := 0, map[string]bool{}
	for _, o := range t.Ended {
		if o.Worker != worker {
			continue
		}
		if o.Completed {
			break
		}
		if all++; on[o.Source] == worker {
			failed, sources[o.Source] = append(failed, o), true
		}
	}
	if len(failed) < SuspectAfter || len(sources) < 2 {
		return "", nil
	}
	since := failed[len(failed)-1].At
	labelled := slices.ContainsFunc(failed, func(o EndedBuild) bool { return o.App+o.Branch != "" })
	completed, ended, like := 0, 0, false
	for _, o := range t.Ended {
		if o.At.Before(since) {
			break
		}
		if o.Worker == worker || !slices.ContainsFunc(failed, func(f EndedBuild) bool { return f.Class == o.Class }) {
			continue
		}
		if ended++; o.Completed {
			completed++
			like = like || slices.ContainsFunc(failed, o.Like)
		}
	}
	if labelled && !like || !labelled && completed < suspectLikes {
		return "", nil
	}
	which := fmt.Sprintf("all %d failures", all)
	if others := ended - completed; others > 0 {
		which = fmt.Sprintf("%d of %d failures", all, all+others)
	}
	return fmt.Sprintf("%s of %s ran here; other workers completed %d of %d builds of the same kind",
		which, roughly(failed[0].At.Sub(since)), completed, ended), failed
}

// roughly returns a duration as text.
func roughly(d time.Duration) string {
	switch {
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d min", d/time.Minute)
	}
	return fmt.Sprintf("%d s", d/time.Second+1)
}
