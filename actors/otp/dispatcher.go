package otp

import "sync"

// maxIdle is how many goroutines a dispatcher keeps warm.
const maxIdle = 64

// throughput satisfies protoactor's dispatcher interface; our mailbox leaves
// fairness to Go's preemption.
const throughput = 300

// dispatcher runs mailboxes and tasks on kept goroutines. A fresh goroutine per
// wake-up would spend more time on growing its stack than on the message.
type dispatcher struct {
	mu     sync.Mutex // guards what follows
	idle   []chan func()
	closed bool
}

// Schedule runs fn in a goroutine of its own: a kept one, or a new one.
func (d *dispatcher) Schedule(fn func()) {
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		next := d.idle[n-1] // the last one used has the warmest stack
		d.idle = d.idle[:n-1]
		d.mu.Unlock()
		next <- fn
		return
	}
	d.mu.Unlock()
	go d.work(fn)
}

// Throughput is part of protoactor's interface.
func (*dispatcher) Throughput() int { return throughput }

// work runs fn, then what comes. A function that calls runtime.Goexit ends this
// goroutine only: it is not among the idle ones while it works.
func (d *dispatcher) work(fn func()) {
	next := make(chan func(), 1)
	for fn != nil {
		fn()
		if !d.park(next) {
			return
		}
		fn = <-next
	}
}

func (d *dispatcher) park(next chan func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.idle) >= maxIdle {
		return false
	}
	d.idle = append(d.idle, next)
	return true
}

// close lets the idle goroutines end; busy ones end after their function.
func (d *dispatcher) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, next := range d.idle {
		next <- nil
	}
	d.idle = nil
}
