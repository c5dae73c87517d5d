package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

var errKilled = errors.New("killed by the drill")

// ledger is what the drill's clients know: which builds there are, who holds them, and
// which promises were broken. Safe for concurrent use.
type ledger struct {
	// timeout is how long the holder of a build may be silent before takt may give the
	// build to another worker. Immutable.
	timeout time.Duration
	begun   time.Time // immutable

	mu      sync.Mutex // guards what follows
	builds  map[string]*build
	workers []*worker // alive
	result  report
	// violatedBuilds are builds whose steps explain what was broken.
	violatedBuilds []string
}

func newLedger() *ledger {
	return &ledger{timeout: heartbeatTimeout, begun: time.Now(), builds: map[string]*build{}, result: report{Faults: map[string]int{}, Broken: []string{}}}
}

// build is what is known of one build. Builds that processes of `takt worker` hold have no
// holder here.
type build struct {
	accepted bool
	want     [sha256.Size]byte // digest of its result, once accepted
	holder   *worker
	done     bool // its result was acknowledged
}

// worker is one life of a worker within this process.
type worker struct {
	id, token string
	// instance tells this life from others under the same id, of which a request may still
	// be on its way.
	instance  string
	build     string // guarded by ledger.mu, like what follows
	heartbeat time.Time
	dead      bool
	kill      context.CancelCauseFunc
}

// of returns what is known of a build. The caller holds mu.
func (l *ledger) of(id string) *build {
	b := l.builds[id]
	if b == nil {
		b = &build{}
		l.builds[id] = b
	}
	return b
}

// accept notes that a submit was acknowledged. want is the digest of the result.
func (l *ledger) accept(id string, want [sha256.Size]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.of(id)
	b.accepted, b.want = true, want
}

// assign notes that w was given a build by a poll that it sent at that time. It returns
// false if w is dead: nobody has the build then.
func (l *ledger) assign(id string, w *worker, sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.dead {
		return false
	}
	b := l.of(id)
	switch {
	case b.done:
		l.buildViolation(id, "%s was given to %s after its result was taken", id, w.id)
	case b.holder != nil && b.holder != w && l.recent(b.holder):
		l.buildViolation(id, "%s was given to %s while %s held it", id, w.id, b.holder.id)
	}
	b.holder, w.build, w.heartbeat = w, id, sent
	return true
}

// recent reports whether takt must have heard of w within the time-out. The time is halved
// because takt counts from when a beat was recorded. The caller holds mu.
func (l *ledger) recent(w *worker) bool { return time.Since(w.heartbeat) < l.timeout/2 }

// heartbeat notes that takt has acknowledged a beat that w sent at that time.
func (l *ledger) heartbeat(w *worker, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.heartbeat = sent
}

// revoked notes that takt no longer lets w have its build.
func (l *ledger) revoked(id string, w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recent(w) && !w.dead {
		l.buildViolation(w.build, "%s was taken from %s, which was alive", id, w.id)
	}
	l.release(w)
}

// deliver notes that a result was acknowledged.
func (l *ledger) deliver(w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.dead {
		return
	}
	l.of(w.build).done = true
	l.release(w)
}

// release makes w hold nothing. The caller holds mu.
func (l *ledger) release(w *worker) {
	if b := l.builds[w.build]; b != nil && b.holder == w {
		b.holder = nil
	}
	w.build = ""
}

func (l *ledger) join(w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.workers = append(l.workers, w)
}

// kill ends the life of a worker: where, from 0 to 1, says which. It reports whether
// there was one.
func (l *ledger) kill(where float64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.workers) == 0 {
		return false
	}
	i := int(where * float64(len(l.workers)))
	w := l.workers[i]
	l.release(w)
	w.dead = true
	l.workers = slices.Delete(l.workers, i, i+1)
	w.kill(errKilled)
	return true
}

// count changes the numbers of the report.
func (l *ledger) count(change func(r *report)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.result)
}

// violation records a broken promise.
func (l *ledger) violation(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record(format, args...)
}

// unexpected records an error that should not be, if it is one.
func (l *ledger) unexpected(err error) {
	if err != nil {
		l.violation("%v", err)
	}
}

// record notes a violation once, with the time. The caller holds mu.
func (l *ledger) record(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.ContainsFunc(l.result.Broken, func(old string) bool { return strings.HasSuffix(old, text) }) {
		l.result.Broken = append(l.result.Broken, fmt.Sprintf("%.1f s: %s", time.Since(l.begun).Seconds(), text))
	}
}

// buildViolation is record for a build.
func (l *ledger) buildViolation(id, format string, args ...any) {
	l.violatedBuilds = append(l.violatedBuilds, id)
	l.record(format, args...)
}

// accepted returns the accepted builds and the digests of their results.
func (l *ledger) accepted() map[string][sha256.Size]byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][sha256.Size]byte{}
	for id, b := range l.builds {
		if b.accepted {
			all[id] = b.want
		}
	}
	return all
}

// report returns the result of the drill so far.
func (l *ledger) report() report {
	accepted := len(l.accepted())
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.result
	r.Accepted = accepted
	return r
}
