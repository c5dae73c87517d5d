package heijunka

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"takt/actors/otp"
)

// Limits are what the gate admits.
type Limits struct {
	// Soft is where the load is critical; alerts begin at Soft × (1 - Reserved).
	Soft int
	// Hard is the most tokens at once.
	Hard int
	// Reserved is the share of Hard that only priority domains may use, 0 to 1.
	Reserved float64
}

// Regular is the most tokens at which regular domains are admitted.
func (l Limits) Regular() int { return share(l.Hard, l.Reserved) }

// Alert is the load from which operators are told.
func (l Limits) Alert() int { return share(l.Soft, l.Reserved) }

// share is what of n is not reserved, rounded down; 1200 × 0.8 is 960.
func share(n int, reserved float64) int { return int(math.Floor(float64(n)*(1-reserved) + 1e-9)) }

// The rules that refuse.
const (
	RuleRegular = "regular" // regular domains leave the reserve alone
	RuleHard    = "hard"
	RuleQueue   = "queue" // too many wait for a slot already
	RuleWait    = "wait"  // no slot became free in time
)

// gate admits requests up to the limits. One counter decides; a table knows who
// was admitted. All of it is lock-free but the growth of the table.
type gate struct {
	load   atomic.Int64 // tokens; changed by compare-and-swap, so never above a limit
	_      [56]byte     // the words that all requests write have cache lines of their own
	free   atomic.Uint64
	_      [56]byte
	limits atomic.Pointer[Limits]
	born   time.Time // times in the table count from here
	drain  atomic.Uint64
	refuse [2]atomic.Int64 // rejections by rule

	chunks [maxChunks]atomic.Pointer[chunk]
	mu     sync.Mutex // guards the growth
	grown  int        // chunks that there are
}

const (
	chunkSize = 256
	maxChunks = 400
	// maxHard is the highest hard limit that the table can hold, with some spare
	// for entries that are being looked at.
	maxHard = 100_000
)

type chunk [chunkSize]entry

// entry is one place of the table. Its plain fields are written by who has taken
// it from the free list, while no reader is registered, and do not change while
// it is held.
type entry struct {
	// state counts takings and givings back: odd while held. It is the
	// generation of tokens.
	state   atomic.Uint64
	next    atomic.Uint32 // index+1 of the next free entry
	readers atomic.Int32

	domain *domain
	id     string
	route  string
	since  time.Duration
	_      [40]byte
}

// Token is the permission to be at work. The zero Token is none.
type Token struct {
	gate  *gate
	index uint32
	state uint64
	watch *watch // set if a process holds it
}

type watch struct{ cancel func() }

func newGate(l Limits) *gate {
	g := &gate{born: time.Now()}
	g.limits.Store(&l)
	return g
}

// set changes the limits. Tokens that are out stay out.
func (g *gate) set(l Limits) { g.limits.Store(&l) }

func (g *gate) now() time.Duration { return time.Since(g.born) }

// admit hands out a token at now, or says by which rule and limit not.
func (g *gate) admit(d *domain, id, route string, now time.Duration) (t Token, rule string, load, limit int) {
	l := g.limits.Load()
	most := l.Hard
	if !d.Priority {
		most = l.Regular()
	}
	for {
		n := g.load.Load()
		if n >= int64(most) {
			return Token{}, g.refused(d.Priority), int(n), most
		}
		if g.load.CompareAndSwap(n, n+1) {
			break
		}
	}
	i, e := g.take()
	e.domain, e.id, e.route, e.since = d, id, route, now
	state := e.state.Add(1) // from here on it can be read, and given back
	return Token{gate: g, index: i, state: state}, "", 0, 0
}

func (g *gate) refused(priority bool) string {
	if priority {
		g.refuse[1].Add(1)
		return RuleHard
	}
	g.refuse[0].Add(1)
	return RuleRegular
}

// hold makes the token come back by itself when holder ends.
func (t *Token) hold(holder *otp.Proc) {
	again := *t
	t.watch = &watch{cancel: holder.Watch(func(error) { again.Release() })}
}

// Release gives the token back and reports whether that was still to be done:
// a second time is harmless, whoever has the place by then.
func (t Token) Release() bool {
	if t.gate == nil {
		return false
	}
	if t.watch != nil {
		t.watch.cancel()
	}
	e := t.gate.entry(t.index)
	if !e.state.CompareAndSwap(t.state, t.state+1) {
		return false
	}
	// In this order holders are never more than the counter says.
	t.gate.push(t.index, e)
	t.gate.load.Add(-1)
	return true
}

func (g *gate) entry(i uint32) *entry { return &g.chunks[i/chunkSize].Load()[i%chunkSize] }

// take takes a free entry that nobody is looking at.
func (g *gate) take() (uint32, *entry) {
	for {
		i, e, ok := g.pop()
		if !ok {
			g.grow()
			continue
		}
		if e.readers.Load() == 0 {
			return i, e
		}
		// A reader came late and is about to find that it is too late: take
		// another one meanwhile.
		j, other := g.take()
		g.push(i, e)
		return j, other
	}
}

// pop and push are a stack of indices; its head carries a count of changes, so
// that a head that was taken and put back is not mistaken for an unchanged one.
func (g *gate) pop() (uint32, *entry, bool) {
	for {
		head := g.free.Load()
		if uint32(head) == 0 {
			return 0, nil, false
		}
		i := uint32(head) - 1
		e := g.entry(i)
		if g.free.CompareAndSwap(head, (head>>32+1)<<32|uint64(e.next.Load())) {
			return i, e, true
		}
	}
}

func (g *gate) push(i uint32, e *entry) {
	for {
		head := g.free.Load()
		e.next.Store(uint32(head))
		if g.free.CompareAndSwap(head, (head>>32+1)<<32|uint64(i+1)) {
			return
		}
	}
}

// grow adds a chunk of entries, unless somebody else just has.
func (g *gate) grow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if uint32(g.free.Load()) != 0 {
		return
	}
	c, first := &chunk{}, uint32(g.grown*chunkSize)
	g.chunks[g.grown].Store(c)
	g.grown++
	for i := range c {
		g.push(first+uint32(i), &c[i])
	}
}

// each calls f for every held entry, in no order. What f is given holds good
// during the call.
func (g *gate) each(f func(e *entry)) {
	g.mu.Lock()
	grown := g.grown
	g.mu.Unlock()
	for c := range grown {
		chunk := g.chunks[c].Load()
		for i := range chunk {
			e := &chunk[i]
			e.readers.Add(1)
			// An entry that is given back now is not taken again while we are
			// registered.
			if e.state.Load()%2 == 1 {
				f(e)
			}
			e.readers.Add(-1)
		}
	}
}

// accepted is how many tokens were ever handed out.
func (g *gate) accepted() (n int64) {
	g.mu.Lock()
	grown := g.grown
	g.mu.Unlock()
	for c := range grown {
		chunk := g.chunks[c].Load()
		for i := range chunk {
			n += int64(chunk[i].state.Load()+1) / 2
		}
	}
	return n
}

// rejected is how many were refused, by RuleRegular and by RuleHard.
func (g *gate) rejected() (regular, hard int64) { return g.refuse[0].Load(), g.refuse[1].Load() }

// drained notes how many tokens come back per second.
func (g *gate) drained(rate float64) { g.drain.Store(math.Float64bits(rate)) }

// drainRate is how many tokens come back per second.
func (g *gate) drainRate() float64 { return math.Float64frombits(g.drain.Load()) }
