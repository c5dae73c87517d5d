// Package forecast explains a build for `takt why` and the dashboard: what happened to it,
// why it is pending, and when it may start. It computes that from the state of the fleet and
// from how long recent builds took.
package forecast

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"takt/store"
)

// Queue is the part of the queue and of the fleet for one class of work.
type Queue struct {
	store.FleetSummary
	Usual store.Durations
	// Busy are the builds whose slots are used for the class next; there may be more. Late
	// counts those that run longer than nine of ten.
	Busy   []Run
	Late   int
	Shared bool // a worker takes other classes, too
}

// Run is how long a build has run, and how long builds like it take.
type Run struct {
	Elapsed time.Duration
	Usual   store.Durations
}

// Late reports whether the build has run longer than nine of ten builds like it.
func (r Run) Late() bool { return r.Usual.Count >= 5 && r.Elapsed > r.Usual.Ninth }

// Unpolled returns how many slots have no build and a worker that does not poll now.
func (p Queue) Unpolled() int { return max(p.Slots-p.Held-p.Free, 0) }

// Reason is why a build waits, and when it may start.
type Reason struct {
	// Kind is unmatched (there is no worker), worker (none is online), paused (none gets builds),
	// busy, next or retry (it waits for its retry).
	Kind, Text, Start string
	// Near are the workers that come nearest to taking the build, if no worker can.
	Near []string
	// Counts say the same to those who may not see workers: how many, and what of the build's
	// requirement they lack; neither names nor labels.
	Counts []string
}

// Unable says why no worker for the class gets builds.
func Unable(p Queue) string {
	of := "worker"
	if p.Class.ID != 0 {
		of += " for " + p.Class.String()
	}
	var paused []string
	for _, c := range [...]struct {
		n     int
		state string
	}{{p.Leaving, "leaving"}, {p.Draining, "draining"}, {p.Quarantined, "quarantined"}, {p.Suspect, "suspect"}, {p.Critical, "critical"}, {p.Silent, "silent"}} {
		if c.n > 0 {
			paused = append(paused, strconv.Itoa(c.n)+" "+c.state)
		}
	}
	switch {
	case p.Known == 0:
		return "There is no " + of + "."
	case paused != nil:
		return "No " + of + " gets builds: " + strings.Join(paused, ", ") + "."
	default:
		return "No " + of + " is online (" + strconv.Itoa(p.Known) + " known)."
	}
}

// retryOf says until when a build waits for its retry.
func retryOf(b store.PendingBuild) Reason {
	return Reason{Kind: "retry", Text: "It waits until " + b.Due.UTC().Format(time.TimeOnly) + " UTC for its retry after " + b.Ended.String() + "."}
}

// why says why a build waits. p is the part of the fleet that could build it.
func why(b store.PendingBuild, p Queue, all *store.Fleet) Reason {
	switch number := max(b.Number, 1); {
	case p.Able == 0 && p.Leaving+p.Draining+p.Critical+p.Quarantined+p.Suspect > 0:
		return Reason{Kind: "paused", Text: Unable(p)}
	case p.Known == 0:
		near := all.Nearest(&p.Class)
		return Reason{Kind: "unmatched", Text: cmp.Or(all.Lacking(&p.Class), Unable(p)), Near: nearest(near), Counts: counts(near)}
	case p.Able == 0:
		return Reason{Kind: "worker", Text: Unable(p)}
	case number <= p.Free:
		return Reason{Kind: "next", Text: "A slot is free: the next poll of a worker gets it.", Start: "any moment"}
	case number <= p.Slots-p.Held:
		return Reason{Kind: "busy", Text: "A slot is free, but its worker does not poll now."}
	default:
		busy, turns := "Every slot is busy", ""
		if p.Free > 0 {
			busy = "The free slots go to builds before it"
		}
		if b.Own != nil && *b.Own < number-1 {
			turns = fmt.Sprintf(" Keys take turns: %d of its own key and %d of others are before it.", *b.Own, number-1-*b.Own)
		}
		return Reason{
			Kind:  "busy",
			Text:  fmt.Sprintf(busy+" (%s, %s); number %d of %d for %s.", Count(p.Slots, "slot", "slots"), Count(p.Able, "worker", "workers"), number, max(p.Pending, number), p.Class.String()) + turns,
			Start: estimate(number, max(b.Place, number), p),
		}
	}
}

// nearest names workers and what they lack.
func nearest(misses []store.NearMiss) (near []string) {
	for _, m := range misses {
		who, lack := m.Name, " lacks "
		if m.N > 1 {
			who, lack = who+" and "+Count(m.N-1, "other", "others"), " lack "
		}
		near = append(near, who+lack+strings.Join(m.Lacks, ", "))
	}
	return near
}

// counts says how many workers lack what.
func counts(misses []store.NearMiss) (near []string) {
	var lacks []string
	number := map[string]int{}
	for _, m := range misses {
		lack := strings.Join(m.Missing, ", ")
		if number[lack] == 0 {
			lacks = append(lacks, lack)
		}
		number[lack] += m.N
	}
	for _, lack := range lacks {
		verb := " lack "
		if number[lack] == 1 {
			verb = " lacks "
		}
		near = append(near, Count(number[lack], "worker", "workers")+verb+lack)
	}
	return near
}

// estimate says when the nth build of a class starts, or the latest-th if its workers take
// other classes, too. It is made from what is left of the builds that run.
func estimate(n, latest int, p Queue) string {
	switch {
	case p.Usual.Count == 0 || len(p.Busy) == 0:
		return ""
	case !p.Shared:
		latest = n
	}
	soon, late := make([]time.Duration, p.Free), make([]time.Duration, p.Free) // until each slot becomes free
	for _, r := range p.Busy {
		soon = append(soon, max(r.Usual.Quarter-r.Elapsed, 0))
		if r.Elapsed < r.Usual.Ninth {
			late = append(late, r.Usual.Ninth-r.Elapsed)
		}
	}
	if len(late) == 0 {
		return "unknown: " + Count(len(p.Busy), "build runs", "builds run") + " much longer than usual"
	}
	// Of very many builds that run, Busy has a part.
	scale := func(n int) int { return max(1, n*len(p.Busy)/max(p.Held, len(p.Busy))) }
	from, to := nth(scale(n), soon, p.Usual.Quarter), nth(scale(latest), late, p.Usual.Ninth)
	if from < 10*time.Second {
		return "within " + Rough(to)
	}
	return Rough(from) + " to " + Rough(max(from, to))
}

// nth returns when the nth build gets a slot, if each slot becomes free after a time of free,
// and again each time that a build took.
func nth(n int, free []time.Duration, took time.Duration) time.Duration {
	took = max(took, time.Millisecond)
	last := slices.Max(free) + time.Duration(n)*took
	return time.Duration(sort.Search(int(last), func(t int) bool {
		started := 0
		for _, f := range free {
			if after := time.Duration(t) - f; after >= 0 {
				started += 1 + int(after/took)
			}
		}
		return started >= n
	}))
}

// Count returns a number with what it counts.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// Rough formats a duration for an estimate, with few digits, so that it changes rarely.
func Rough(d time.Duration) string {
	switch d = d.Abs(); {
	case d < 10*time.Second:
		return "a few seconds"
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())/10*10) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h"
	default:
		return strconv.Itoa(int(d.Hours())/24) + " d"
	}
}
