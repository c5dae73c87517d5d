package store

import (
	"slices"
	"strconv"
	"sync"
)

// FleetGroup is N workers with the same platforms, labels and state, one of them by name. The
// numbers are sums; see FleetSummary.
type FleetGroup struct {
	Platforms  []Platform
	Labels     Labels
	State      string
	N, Online  int
	Slots      int
	Held, Free int
	Name       string
}

// Presence says how many workers are online, and how many of them get builds unless all do.
func (s FleetSummary) Presence() string {
	text := strconv.Itoa(s.Online) + " workers online"
	if s.Online == 1 {
		text = "1 worker online"
	}
	switch s.Able {
	case s.Online:
	case 1:
		text += ", 1 gets builds"
	default:
		text += ", " + strconv.Itoa(s.Able) + " get builds"
	}
	return text
}

// Takes reports whether the workers can take a class of work.
func (g *FleetGroup) Takes(c *Class) bool { return c.TakenBy(g.Platforms, g.Labels) }

// Fleet is all workers. It answers for many classes of work with many workers. Safe for
// concurrent use.
type Fleet struct {
	groups []FleetGroup
	having map[string][]labelled // by a label's name

	mu   sync.Mutex           // guards what follows
	near map[int32][]NearMiss // what Nearest found, by the number of the class
	none map[int32]bool       // what Unmatched found
}

// labelled is that the group of a number has a label with a value.
type labelled struct {
	group int
	value string
}

// NewFleet returns a Fleet of groups, which must not change any more.
func NewFleet(groups []FleetGroup) *Fleet {
	f := &Fleet{groups: groups, having: map[string][]labelled{}, near: map[int32][]NearMiss{}, none: map[int32]bool{}}
	for i := range groups {
		for name, value := range groups[i].Labels {
			f.having[name] = append(f.having[name], labelled{i, value})
		}
	}
	return f
}

// Count adds the workers that take the class of s to s, or all if its number is 0.
func (f *Fleet) Count(s *FleetSummary) {
	named := slices.IndexFunc(s.Class.Require, func(c condition) bool { return !c.match("", false) })
	if named < 0 {
		for i := range f.groups {
			if g := &f.groups[i]; s.Class.ID == 0 || g.Takes(&s.Class) {
				s.add(g)
			}
		}
		return
	}
	want := &s.Class.Require[named] // only workers with this label satisfy it
	for _, l := range f.having[want.name] {
		if g := &f.groups[l.group]; want.match(l.value, true) && g.Takes(&s.Class) {
			s.add(g)
		}
	}
}

// add counts a group.
func (s *FleetSummary) add(g *FleetGroup) {
	if g.State != WorkerLeft {
		s.Known += g.N
	}
	s.Online += g.Online
	switch g.State {
	case string(Idle), string(Busy):
		s.Able, s.Slots, s.Held, s.Free = s.Able+g.N, s.Slots+g.Slots, s.Held+g.Held, s.Free+g.Free
	case WorkerLeaving:
		s.Leaving += g.N
	case WorkerDraining:
		s.Draining += g.N
	case WorkerCritical:
		s.Critical += g.N
	case WorkerQuarantined:
		s.Quarantined += g.N
	case WorkerSuspect:
		s.Suspect += g.N
	case WorkerSilent:
		s.Silent += g.N
	}
}

// Unmatched reports whether c has requirements and no worker meets them. It is false while there is no
// worker at all. A class without a number is looked for each time.
func (f *Fleet) Unmatched(c *Class) bool {
	if len(c.Require) == 0 {
		return false
	}
	f.mu.Lock()
	none, ok := f.none[c.ID]
	f.mu.Unlock()
	if ok {
		return none
	}
	of := FleetSummary{Class: *c}
	of.Class.ID = max(c.ID, 1) // 0 is all
	f.Count(&of)
	none = of.Known == 0 && slices.ContainsFunc(f.groups, func(g FleetGroup) bool { return g.State != WorkerLeft })
	if c.ID != 0 {
		f.mu.Lock()
		f.none[c.ID] = none
		f.mu.Unlock()
	}
	return none
}

const maxNear = 3

// NearMiss is N workers that can't take a class of work, one of them by name, and what they
// lack: with the labels that they have in its place, and without.
type NearMiss struct {
	Name           string
	N              int
	Lacks, Missing []string
}

// Nearest returns the workers that come nearest to taking a class, of those that can't: at most
// maxNear kinds of workers that lack the same. Of those that lack equally much, the ones that
// the groups have first come first.
func (f *Fleet) Nearest(c *Class) []NearMiss {
	f.mu.Lock()
	defer f.mu.Unlock()
	near, ok := f.near[c.ID]
	if !ok {
		near = f.nearest(c)
		f.near[c.ID] = near
	}
	return near
}

func (f *Fleet) nearest(c *Class) (near []NearMiss) {
	type kind struct {
		*FleetGroup
		n, lacks int
	}
	var kinds []kind
	lacking := f.lacking(c)
	for i := range f.groups {
		g, lacks := &f.groups[i], lacking[i]
		if g.State == WorkerLeft || lacks == 0 {
			continue
		}
		if same := slices.IndexFunc(kinds, func(k kind) bool { return k.lacks == lacks && c.lackSame(k.FleetGroup, g) }); same >= 0 {
			kinds[same].n += g.N
			continue
		}
		at := slices.IndexFunc(kinds, func(k kind) bool { return k.lacks > lacks })
		if at < 0 {
			at = len(kinds)
		}
		kinds = slices.Insert(kinds, at, kind{g, g.N, lacks})
		kinds = kinds[:min(len(kinds), maxNear)] // the last never comes back, as those before it don't go
	}
	for _, k := range kinds {
		miss := NearMiss{Name: k.Name, N: k.n}
		miss.Lacks, miss.Missing = c.lacks(k.FleetGroup)
		near = append(near, miss)
	}
	return near
}

// lacking returns how much each group lacks for a class.
func (f *Fleet) lacking(c *Class) []int {
	lacks, without := make([]int, len(f.groups)), 0 // without any label
	for i := range c.Require {
		if !c.Require[i].match("", false) {
			without++
		}
	}
	for i := range lacks {
		if lacks[i] = without; c.lacksPlatform(&f.groups[i]) {
			lacks[i]++
		}
	}
	for i := range c.Require {
		want := &c.Require[i]
		absent := want.match("", false)
		for _, l := range f.having[want.name] {
			switch present := want.match(l.value, true); {
			case present && !absent:
				lacks[l.group]--
			case absent && !present:
				lacks[l.group]++
			}
		}
	}
	return lacks
}
