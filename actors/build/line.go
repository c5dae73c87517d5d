package build

// key names a worker as a poll does: by the family of the token that it
// presents, which all tokens of one registration have in common, or by its id. A
// poll with a token is never filed under the id that it also claims, because
// only the store can tell whether the two belong together.
type key struct {
	worker string
	family int64
}

// desk is where the polls of one worker meet, so that a worker is never in two
// batches at once and its newest poll replaces an older one that still waits.
type desk struct {
	keys   [2]key // by family and by worker id; the zero key means none
	flying *poll
	next   *poll // the newest poll that does not fly: lined, blocked or parked
}

// line is the polls that wait for the next batch, in order of arrival, and the
// desks of their workers.
type line struct {
	desks map[key]*desk
	queue []*poll // may hold ended polls: they are skipped
	head  int
	size  int // polls in the queue that are not ended
}

func newLine() line { return line{desks: make(map[key]*desk)} }

// keyOf returns the key that p is filed under.
func keyOf(p *poll) key {
	if !p.req.Token.IsZero() {
		return key{family: p.req.Token.Family()}
	}
	return key{worker: p.req.WorkerID}
}

// deskOf returns p's desk, a new one if its worker has none.
func (l *line) deskOf(p *poll) *desk {
	k := keyOf(p)
	d := l.desks[k]
	if d == nil {
		d = &desk{keys: [2]key{k}}
		l.desks[k] = d
	}
	return d
}

// identify files d under the worker's id as well, now that the store has named
// it. If that worker already has another desk on the ground, both become one
// and the older of their waiting polls is returned: it is superseded.
func (l *line) identify(d *desk, worker string) (older *poll) {
	k := key{worker: worker}
	other := l.desks[k]
	if other == d {
		return nil
	}
	if other == nil {
		l.alias(d, k)
		return nil
	}
	if other.flying != nil {
		return nil // two polls of one worker fly: the store's poll_seq decides
	}
	for _, o := range other.keys {
		if o != (key{}) {
			delete(l.desks, o)
		}
	}
	l.alias(d, k)
	return l.merge(d, other.next)
}

// alias files d under k too, in the place of its former second key.
func (l *line) alias(d *desk, k key) {
	if d.keys[1] != (key{}) {
		delete(l.desks, d.keys[1])
	}
	d.keys[1] = k
	l.desks[k] = d
}

// parked returns the parked poll of worker, nil if it has none.
func (l *line) parked(worker string) *poll {
	if d := l.desks[key{worker: worker}]; d != nil && d.next != nil && d.next.state == parked {
		return d.next
	}
	return nil
}

// merge makes q a poll of desk d and returns the one of two that has to go.
func (l *line) merge(d *desk, q *poll) (older *poll) {
	if q == nil {
		return nil
	}
	q.desk = d
	if d.next == nil {
		d.next = q
		return nil
	}
	if d.next.no > q.no {
		return q
	}
	older, d.next = d.next, q
	return older
}

// push puts p at the end of the line.
func (l *line) push(p *poll) {
	p.state = lined
	l.queue = append(l.queue, p)
	l.size++
}

// pop takes the first poll off the line, nil if there is none. The caller gives
// it its next state.
func (l *line) pop() *poll {
	for l.head < len(l.queue) {
		p := l.queue[l.head]
		l.queue[l.head] = nil
		l.head++
		if p.state == lined {
			l.size--
			p.state = blocked
			l.shrink()
			return p
		}
	}
	l.shrink()
	return nil
}

// shrink gives the space before head back once it is most of the queue.
func (l *line) shrink() {
	if l.head < len(l.queue) && l.head < 1024 {
		return
	}
	n := copy(l.queue, l.queue[l.head:])
	clear(l.queue[n:])
	l.queue, l.head = l.queue[:n], 0
}

// release lets the next poll of d proceed, and drops a desk that nobody needs.
func (l *line) release(d *desk) {
	switch {
	case d.flying != nil:
	case d.next == nil:
		for _, k := range d.keys {
			if l.desks[k] == d {
				delete(l.desks, k)
			}
		}
	case d.next.state == blocked:
		l.push(d.next)
	}
}
