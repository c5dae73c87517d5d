package build

import (
	"time"

	"takt/store"
)

// board is all that QueueManager remembers, and every decision that it takes,
// without clock, goroutines or database. Polls go from the line into a flight
// and from there to their end or into the room; wake-ups bring them back into
// the line.
type board struct {
	line   line
	room   room
	hints  hints
	warmth warmth
	// woken is how many polls are on their way to fetch a build of a lane.
	woken [laneCount]int
	aloft []*flight
	last  uint64 // the number of the newest poll
	// waiting is how many polls may park or are parked; limit bounds it.
	waiting, limit int
	// away is true while the database is: parked polls are left alone.
	away bool
}

func newBoard(limit int, shown *depth) *board {
	b := &board{line: newLine(), room: newRoom(), hints: hints{shown: shown}, warmth: newWarmth(), limit: limit}
	for lane := range shown {
		b.hints.pending[lane] = int(shown[lane].Load())
	}
	return b
}

// arrive puts a new poll in the line. It supersedes an older one of its worker
// that waits, and waits itself for one that flies.
func (b *board) arrive(p *poll) {
	b.last++
	p.no = b.last
	if p.wait > 0 {
		if b.waiting >= b.limit {
			p.wait, p.req.Mode = 0, store.Answer
		} else {
			b.waiting++
		}
	}
	d := b.line.deskOf(p)
	p.desk = d
	if d.next != nil {
		b.supersede(d.next)
	}
	d.next = p
	if d.flying != nil {
		p.state = blocked
		return
	}
	b.line.push(p)
}

// leave removes a poll that nobody waits for any more.
func (b *board) leave(p *poll) {
	switch p.state {
	case ended:
	case flying:
		p.gone = true
	case lined, blocked, parked:
		d := p.desk
		b.end(p)
		b.line.release(d)
	}
}

// supersede ends a waiting poll because its worker has sent a newer one.
func (b *board) supersede(p *poll) {
	b.end(p)
	p.replyEmpty(b.hints.shown.of(everything))
}

// end forgets a poll that does not fly.
func (b *board) end(p *poll) {
	switch p.state {
	case ended:
		return
	case parked:
		b.room.remove(p)
	case lined:
		b.line.size--
	case blocked, flying:
	}
	p.state = ended
	b.unwake(p)
	if p.wait > 0 {
		b.waiting--
	}
	if p.desk.next == p {
		p.desk.next = nil
	}
}

// unwake takes note that p no longer fetches the build it was woken for.
func (b *board) unwake(p *poll) {
	if p.lane != noLane {
		b.woken[p.lane]--
		p.lane = noLane
	}
}

// wake sends one parked poll for each build that nobody fetches yet, longest
// parked first but for those with a warm cache. Those polls keep their number, and
// so their place if they come back with nothing. It returns how many it sent.
func (b *board) wake(now time.Time) int {
	defer b.warmth.settle()
	if b.away {
		return 0
	}
	sent := 0
	for lane := range laneCount {
		for b.woken[lane] < b.hints.pending[lane] {
			p := b.choose(lane, now)
			if p == nil {
				break
			}
			b.room.remove(p)
			p.lane, p.req.Mode = lane, store.Resume
			b.woken[lane]++
			b.line.push(p)
			sent++
		}
	}
	return sent
}

// expire puts the parked polls whose time is up in the line.
func (b *board) expire(now time.Time) {
	for {
		due, ok := b.room.nextDue()
		if !ok || due.After(now) {
			return
		}
		p := b.room.due.polls[0]
		b.room.remove(p)
		p.req.Mode = store.Expire
		b.line.push(p)
	}
}

// worthwhile reports whether the line is long enough for another flight. While
// one is in the air it should be as long as that: a small flight now would keep
// everybody who comes right after it waiting for the next.
func (b *board) worthwhile(limit int) bool {
	return len(b.aloft) == 0 || b.line.size >= min(limit, b.flying())
}

// take forms a flight of at most limit polls, nil if the line is empty.
func (b *board) take(limit int) *flight {
	if b.line.size == 0 {
		return nil
	}
	f := newFlight(min(limit, b.line.size), b.hints.news)
	for len(f.polls) < limit {
		p := b.line.pop()
		if p == nil {
			break
		}
		p.state, p.desk.flying = flying, p
		if p.desk.next == p {
			p.desk.next = nil
		}
		f.polls = append(f.polls, p)
	}
	for _, o := range b.aloft {
		o.crowded, f.crowded = true, true
	}
	b.aloft = append(b.aloft, f)
	return f
}

// land takes a flight's polls back. Those with a final answer end, the others
// park; and what they found corrects the hints.
func (b *board) land(f *flight) {
	for i, o := range b.aloft {
		if o == f {
			b.aloft = append(b.aloft[:i], b.aloft[i+1:]...)
			break
		}
	}
	dry := nothing
	for i, p := range f.polls {
		l := &f.landings[i]
		p.desk.flying = nil
		if l.WorkerID != "" {
			b.identify(p, l.WorkerID)
		}
		switch {
		case l.err != nil:
		case l.Job != nil && !l.Redelivered:
			if lane := laneOf(l.Job.Platform); lane != noLane {
				b.hints.claimed(lane)
			}
		case l.Job == nil && l.Free && (l.Outcome == store.PollAnswered || l.Outcome == store.PollParked):
			dry |= setOf(l.Platforms)
		}
		d := p.desk
		if l.parks() && !p.gone {
			b.park(p, l)
		} else {
			b.end(p)
		}
		b.line.release(d)
	}
	for lane := range laneCount {
		if dry.has(lane) {
			b.hints.dry(lane, f.seen[lane], f.crowded)
		}
	}
}

// identify files p's desk under the worker that the store named. Older polls of
// that worker, which came under another token, are superseded.
func (b *board) identify(p *poll, worker string) {
	p.worker = worker
	if older := b.line.identify(p.desk, worker); older != nil {
		b.supersede(older)
	}
	if next := p.desk.next; next != nil && next.no < p.no {
		b.supersede(next)
	}
}

// park lets p wait, unless its worker has sent a newer poll meanwhile.
func (b *board) park(p *poll, l *landing) {
	if p.desk.next != nil {
		b.supersede(p)
		return
	}
	b.unwake(p)
	p.req.Seq, p.req.WorkerID = l.Seq, l.WorkerID
	p.takes, p.free = setOf(l.Platforms), l.Free
	p.req.Mode = store.Resume
	p.until = p.arrived.Add(p.wait)
	p.desk.next = p
	b.room.add(p)
}

// fail empties the line because the database is away: polls that were woken
// park again, all others get err.
func (b *board) fail(err error) {
	for p := b.line.pop(); p != nil; p = b.line.pop() {
		if p.req.Mode == store.Resume {
			b.unwake(p)
			b.room.add(p)
			continue
		}
		d := p.desk
		b.end(p)
		p.replyError(err)
		b.line.release(d)
	}
}

// close ends all polls that do not fly: those in the line get err, parked ones
// get an empty answer and ask again.
func (b *board) close(err error) {
	for _, p := range b.room.all() {
		b.supersede(p)
	}
	for _, d := range b.line.desks {
		if p := d.next; p != nil {
			b.end(p)
			p.replyError(err)
		}
	}
}

// freed lets a parked poll of worker be woken again: it has a free slot now.
func (b *board) freed(worker string) {
	d := b.line.desks[key{worker: worker}]
	if d == nil || d.next == nil || d.next.state != parked || d.next.free {
		return
	}
	p := d.next
	b.room.remove(p)
	p.free = true
	b.room.add(p)
}

// flying is how many polls are in the air.
func (b *board) flying() int {
	n := 0
	for _, f := range b.aloft {
		n += len(f.polls)
	}
	return n
}

// doubtful reports whether a parked poll may wait for a build that the hints
// do not show.
func (b *board) doubtful() bool {
	for lane := range laneCount {
		if b.hints.doubt[lane] && b.room.longest(lane) != nil {
			return true
		}
	}
	return false
}
