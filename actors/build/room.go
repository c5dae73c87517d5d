package build

import (
	"container/heap"
	"time"
)

// room holds the parked polls: per set of platforms the longest parked first,
// and all of them by the end of their time. Every operation costs O(log n).
type room struct {
	sets [platformSets]seats // by arrival; polls without a free slot are in none
	due  seats               // by time
}

func newRoom() room {
	var r room
	for i := range r.sets {
		r.sets[i] = seats{slot: 0, before: func(a, b *poll) bool { return a.no < b.no }}
	}
	r.due = seats{slot: 1, before: func(a, b *poll) bool { return a.until.Before(b.until) }}
	return r
}

// size is how many polls are parked.
func (r *room) size() int { return len(r.due.polls) }

// add parks p at the place that its number gives it.
func (r *room) add(p *poll) {
	p.state = parked
	heap.Push(&r.due, p)
	if p.free && p.takes != nothing {
		heap.Push(&r.sets[p.takes], p)
	}
}

// remove takes p out; harmless if it is not in.
func (r *room) remove(p *poll) {
	if p.seat[1] >= 0 {
		heap.Remove(&r.due, p.seat[1])
	}
	if p.seat[0] >= 0 {
		heap.Remove(&r.sets[p.takes], p.seat[0])
	}
}

// longest returns the poll that has been parked longest of those that can take
// a build of lane, nil if there is none.
func (r *room) longest(lane int) *poll {
	var found *poll
	for set := range r.sets {
		if !platforms(set).has(lane) || len(r.sets[set].polls) == 0 {
			continue
		}
		if p := r.sets[set].polls[0]; found == nil || p.no < found.no {
			found = p
		}
	}
	return found
}

// nextDue returns when the first parked poll's time is up.
func (r *room) nextDue() (time.Time, bool) {
	if r.size() == 0 {
		return time.Time{}, false
	}
	return r.due.polls[0].until, true
}

// all returns every parked poll, in no order.
func (r *room) all() []*poll { return append([]*poll(nil), r.due.polls...) }

// seats is a heap of polls that know their position in it.
type seats struct {
	polls  []*poll
	slot   int // which of poll.seat is this heap's
	before func(a, b *poll) bool
}

// Len implements heap.Interface.
func (s *seats) Len() int { return len(s.polls) }

// Less implements heap.Interface.
func (s *seats) Less(i, j int) bool { return s.before(s.polls[i], s.polls[j]) }

// Swap implements heap.Interface.
func (s *seats) Swap(i, j int) {
	s.polls[i], s.polls[j] = s.polls[j], s.polls[i]
	s.polls[i].seat[s.slot], s.polls[j].seat[s.slot] = i, j
}

// Push implements heap.Interface.
func (s *seats) Push(x any) {
	p := x.(*poll) // only this file pushes
	p.seat[s.slot] = len(s.polls)
	s.polls = append(s.polls, p)
}

// Pop implements heap.Interface.
func (s *seats) Pop() any {
	last := len(s.polls) - 1
	p := s.polls[last]
	s.polls[last] = nil
	s.polls = s.polls[:last]
	p.seat[s.slot] = -1
	return p
}
