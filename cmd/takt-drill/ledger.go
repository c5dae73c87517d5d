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
	// silence is how long the holder of a build may be silent before takt may give the
	// build to another worker. Immutable.
	silence time.Duration
	begun   time.Time // immutable

	mu      sync.Mutex // guards what follows
	builds  map[string]*build
	workers []*worker // alive
	faults  map[string]int
	broken  []string
	// suspects are builds whose steps explain what was broken.
	suspects []string
	steps    []string // of suspects

	repeated, completed int
	longest             time.Duration
	takeover            time.Duration
	longestCall         string
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
	instance string
	build    string // guarded by ledger.mu, like what follows
	heard    time.Time
	dead     bool
	kill     context.CancelCauseFunc
}

// of returns what is known of a build. The caller holds mu.
func (l *ledger) of(id string) *build {
	if l.builds == nil {
		l.builds = map[string]*build{}
	}
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

// take notes that w was given a build by a poll that it sent at that time. It returns
// false if w is dead: nobody has the build then.
func (l *ledger) take(id string, w *worker, sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.dead {
		return false
	}
	b := l.of(id)
	switch {
	case b.done:
		l.suspect(id, "%s was given to %s after its result was taken", id, w.id)
	case b.holder != nil && b.holder != w && l.heard(b.holder):
		l.suspect(id, "%s was given to %s while %s held it", id, w.id, b.holder.id)
	}
	b.holder, w.build, w.heard = w, id, sent
	return true
}

// heard reports whether takt must have heard of w within the time-out. The time is halved
// because takt counts from when a beat was recorded. The caller holds mu.
func (l *ledger) heard(w *worker) bool { return time.Since(w.heard) < l.silence/2 }

// beat notes that takt has acknowledged a beat that w sent at that time.
func (l *ledger) beat(w *worker, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.heard = sent
}

// taken notes that takt no longer lets w have its build.
func (l *ledger) taken(id string, w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard(w) && !w.dead {
		l.suspect(w.build, "%s was taken from %s, which was alive", id, w.id)
	}
	l.leave(w)
}

// deliver notes that a result was acknowledged.
func (l *ledger) deliver(w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.dead {
		return
	}
	l.of(w.build).done = true
	l.leave(w)
}

// leave makes w hold nothing. The caller holds mu.
func (l *ledger) leave(w *worker) {
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
	l.leave(w)
	w.dead = true
	l.workers = slices.Delete(l.workers, i, i+1)
	w.kill(errKilled)
	return true
}

func (l *ledger) fault(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults == nil {
		l.faults = map[string]int{}
	}
	l.faults[name]++
}

// called notes how long a call took with its repeats.
func (l *ledger) called(what string, repeats int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repeated += repeats
	if repeats > 0 && took > l.longest {
		l.longest, l.longestCall = took, what
	}
}

// resumed notes how long a controller took to serve after a promotion.
func (l *ledger) resumed(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeover = max(l.takeover, took)
}

func (l *ledger) complete() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completed++
}

func (l *ledger) broke(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.violation(format, args...)
}

// violation records a broken promise once, with the time. The caller holds mu.
func (l *ledger) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.ContainsFunc(l.broken, func(old string) bool { return strings.HasSuffix(old, text) }) {
		l.broken = append(l.broken, fmt.Sprintf("%.1f s: %s", time.Since(l.begun).Seconds(), text))
	}
}

// suspect is violation for a build.
func (l *ledger) suspect(id, format string, args ...any) {
	l.suspects = append(l.suspects, id)
	l.violation(format, args...)
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

func (l *ledger) report(seed uint64, length time.Duration) report {
	accepted := l.accepted()
	l.mu.Lock()
	defer l.mu.Unlock()
	return report{
		Seed: seed, Seconds: length.Seconds(), Faults: l.faults, Accepted: len(accepted), Completed: l.completed,
		Repeated: l.repeated, LongestWait: l.longest.Seconds(), LongestCall: l.longestCall, LongestTakeover: l.takeover.Seconds(), Broken: append([]string{}, l.broken...), Steps: l.steps,
	}
}

// failed notes an error that should not be, if it is one.
func (l *ledger) failed(err error) {
	if err != nil {
		l.broke("%v", err)
	}
}
