package heijunka

// waiter is a request that waits for a slot.
type waiter struct {
	ready      chan Slot // gets the slot; never blocks its sender
	prev, next *waiter
	inLine     bool
}

// waiters is a first-in-first-out line that can be left from anywhere.
type waiters struct {
	head, tail *waiter
	n          int
}

func (q *waiters) add(w *waiter) {
	w.inLine, w.prev = true, q.tail
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.next = w
	}
	q.tail = w
	q.n++
}

// first removes and returns the one that waits for the longest.
func (q *waiters) first() *waiter {
	w := q.head
	q.remove(w)
	return w
}

// remove reports whether w was in the line.
func (q *waiters) remove(w *waiter) bool {
	if !w.inLine {
		return false
	}
	w.inLine = false
	if w.prev == nil {
		q.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
	q.n--
	return true
}
