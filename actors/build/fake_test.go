package build

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"takt/store"
)

// fakeStore is a database in memory that keeps the rules of store.Poll, and
// watches that QueueManager keeps its own.
type fakeStore struct {
	mu      sync.Mutex // guards what follows
	workers map[string]*fakeWorker
	pending []*fakeBuild  // in order
	err     error         // what every method fails with
	poison  string        // Serve fails for batches with this worker
	refused string        // Serve has no answer for this worker
	gate    chan struct{} // Serve waits for it
	flying  map[string]bool
	batches [][]string // the workers of each batch
	counts  int
	swept   []store.Sweep
	sweep   store.SweepResult
	saved   *store.Timeouts
	broken  []string // rules that QueueManager broke
	handed  map[string]int
}

type fakeWorker struct {
	id                string
	current, previous store.TokenHash
	seq               int64
	takes             []store.Platform
	holds             *fakeBuild
}

type fakeBuild struct {
	id       string
	platform store.Platform
	attempt  int
	building bool
}

func newFakeStore() *fakeStore {
	return &fakeStore{workers: map[string]*fakeWorker{}, flying: map[string]bool{}, handed: map[string]int{}}
}

// worker registers a worker; its token is "token-<id>".
func (s *fakeStore) worker(id string, takes ...store.Platform) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[id] = &fakeWorker{id: id, current: store.HashToken("token-" + id), takes: takes}
}

// submit makes a build pending.
func (s *fakeStore) submit(id string, p store.Platform) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, &fakeBuild{id: id, platform: p})
}

// set changes the store while it is in use.
func (s *fakeStore) set(f func(s *fakeStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *fakeStore) Serve(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	names := s.takeOff(polls)
	defer s.touchDown(names)
	s.mu.Lock()
	gate := s.gate
	s.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, store.Wrap(store.Unavailable, "Database unavailable", context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	results := make([]store.PollResult, len(polls))
	for _, name := range names {
		if s.poison != "" && name == s.poison {
			return nil, fmt.Errorf("worker %s has a bad row", name)
		}
	}
	for i, p := range polls {
		if s.refused != "" && names[i] == s.refused {
			results[i] = store.PollResult{Outcome: store.PollFailed, Err: errors.New("bad row")}
			continue
		}
		results[i] = s.serveOne(p)
	}
	return results, nil
}

// takeOff notes a batch and checks that no worker is in two.
func (s *fakeStore) takeOff(polls []store.Poll) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, p := range polls {
		name := p.WorkerID
		if w := s.find(p); w != nil {
			name = w.id
		}
		if s.flying[name] {
			s.broken = append(s.broken, name+" is in two batches or twice in one")
		}
		s.flying[name] = true
		names = append(names, name)
	}
	s.batches = append(s.batches, names)
	return names
}

func (s *fakeStore) touchDown(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.flying, name)
	}
}

func (s *fakeStore) find(p store.Poll) *fakeWorker {
	if p.Token.IsZero() {
		return s.workers[p.WorkerID]
	}
	for _, w := range s.workers {
		if w.current == p.Token || w.previous == p.Token {
			return w
		}
	}
	return nil
}

func (s *fakeStore) serveOne(p store.Poll) store.PollResult {
	w := s.find(p)
	switch {
	case w == nil && p.Token.IsZero():
		return store.PollResult{Outcome: store.PollUnknownWorker}
	case w == nil:
		return store.PollResult{Outcome: store.PollUnknownToken}
	}
	r := store.PollResult{WorkerID: w.id, Platforms: w.takes}
	if p.Mode == store.Resume || p.Mode == store.Expire {
		if p.Seq != w.seq {
			r.Outcome = store.PollSuperseded
			return r
		}
	} else {
		w.seq++
	}
	r.Seq = w.seq
	switch {
	case w.holds != nil && !w.holds.building:
		r.Job, r.Redelivered = w.holds.job(), true
	case w.holds == nil:
		if b := s.claim(w); b != nil {
			b.attempt++
			w.holds = b
			s.handed[b.id]++
			r.Job = b.job()
		}
	}
	r.Free = w.holds == nil
	if r.Job == nil && (p.Mode == store.Park || p.Mode == store.Resume) {
		r.Outcome = store.PollParked
		return r
	}
	if p.Token == w.current || p.Token.IsZero() {
		w.previous = w.current
	}
	w.current = p.Next
	w.seq++
	return r
}

func (s *fakeStore) claim(w *fakeWorker) *fakeBuild {
	for i, b := range s.pending {
		if setOf(w.takes).has(laneOf(b.platform)) {
			s.pending = append(s.pending[:i:i], s.pending[i+1:]...)
			return b
		}
	}
	return nil
}

func (b *fakeBuild) job() *store.Job {
	return &store.Job{BuildID: b.id, Platform: b.platform, Attempt: b.attempt}
}

// finish frees a worker.
func (s *fakeStore) finish(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[id].holds = nil
}

func (s *fakeStore) Pending(_ context.Context, limit int) (map[store.Platform]int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts++
	if s.err != nil {
		return nil, s.err
	}
	n := map[store.Platform]int{}
	for _, b := range s.pending {
		n[b.platform] = min(n[b.platform]+1, limit)
	}
	return n, nil
}

func (s *fakeStore) Sweep(_ context.Context, sw store.Sweep) (store.SweepResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return store.SweepResult{}, s.err
	}
	s.swept = append(s.swept, sw)
	return s.sweep, nil
}

func (s *fakeStore) Timeouts(context.Context) (store.Timeouts, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return store.Timeouts{}, false, s.err
	}
	if s.saved == nil {
		return store.Timeouts{}, false, nil
	}
	return *s.saved, true, nil
}

func (s *fakeStore) SaveTimeouts(_ context.Context, t store.Timeouts) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.saved = &t
	return nil
}
