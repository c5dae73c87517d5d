package queue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"takt/store"
)

// fakeStore is a database in memory that keeps the rules of store.Poll, and
// watches that QueueManager keeps its own.
type fakeStore struct {
	unknown    int        // polls whose workers were not known
	mu         sync.Mutex // guards what follows
	workers    map[string]*fakeWorker
	pending    []*fakeBuild  // in order
	err        error         // what every method fails with
	locked     string        // another transaction has locked this worker's row
	gate       chan struct{} // Assign waits for it
	batched    map[string]bool
	heartbeats int        // that were written
	batches    [][]string // the workers of each batch
	counts     int
	ahead      time.Duration // of the database's clock
	swept      []store.Sweep
	sweep      store.SweepResult
	sweepErr   error                // what Sweep fails with, beside its result
	classesErr error                // what CheckClasses fails with
	due        []store.BuildRef     // what LetIn lets in
	suspects   []store.WorkerUpdate // what CheckSuspects finds, once
	judged     int                  // calls of CheckSuspects
	full       []store.QueueRoom    // what NoteFull was called with
	unmatched  int                  // what Recount finds
	saved      *store.Timeouts
	broken     []string // rules that QueueManager broke
	handed     map[string]int
	elsewhere  []store.WorkerSession // what polls at other controllers wait for
}

type fakeWorker struct {
	store.WorkerSession
	holds []*fakeBuild
}

// unheard returns the builds that a poll is to be given again.
func (w *fakeWorker) unheard(p store.Poll) (all []*fakeBuild) {
	for _, b := range w.holds {
		due := p.Shown == 0 || b.handed > p.Shown || p.Reconcile || w.Slots == 1
		if !b.building && due && !slices.Contains(p.Active, b.id) {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *fakeBuild) int { return cmp.Compare(a.handed, b.handed) })
	return all[:min(len(all), max(p.Max, 1))]
}

type fakeBuild struct {
	id       string
	platform store.Platform
	attempt  int
	handed   uint64
	building bool
}

func newFakeStore() *fakeStore {
	return &fakeStore{workers: map[string]*fakeWorker{}, batched: map[string]bool{}, handed: map[string]int{}}
}

// worker registers a worker; see shows.
func (s *fakeStore) worker(id string, takes ...store.Platform) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[id] = &fakeWorker{
		WorkerSession: store.WorkerSession{Number: uint32(len(s.workers) + 1), ID: id, Platforms: takes, Slots: 1, Used: 1},
	}
}

// shows returns a poll of a registered worker with its first token.
func (s *fakeStore) shows(id string) store.PollRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.PollRequest{Token: store.WorkerToken{Worker: s.workers[id].Number, Counter: 2}, Presented: "token-" + id}
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

func (s *fakeStore) Assign(ctx context.Context, polls []store.Poll) ([]store.PollResult, error) {
	names := s.begin(polls)
	defer s.end(names)
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
	return s.assignAll(polls, func() bool { return false }), nil
}

// assignAll serves the polls of a batch: one build for each, then further ones in turn. locked says
// of each poll whether its worker's row is locked.
func (s *fakeStore) assignAll(polls []store.Poll, locked func() bool) []store.PollResult {
	results := make([]store.PollResult, len(polls))
	waits := func(store.Class) bool { return false }
	for i, p := range polls {
		if !p.Known {
			s.unknown++
		}
		if locked() {
			results[i].Outcome = store.PollLocked
		} else {
			results[i] = s.assign(p)
		}
		if w, before := s.find(p), waits; w != nil && results[i].Outcome == store.PollLocked {
			waits = func(c store.Class) bool { return before(c) || w.Takes(&c) }
		}
	}
	for more := true; more; {
		more = false
		for i, p := range polls {
			w, r := s.find(p), &results[i]
			if w == nil || r.Redelivered || len(r.Jobs) == 0 || len(r.Jobs) >= p.New || !w.Free() {
				continue
			}
			if b := s.first(w); b != nil && slices.Contains(p.Spare, b.class().ID) && !waits(b.class()) {
				s.give(w, p, r)
				more = true
			}
		}
	}
	for i, p := range polls {
		if w := s.find(p); w != nil && len(results[i].Jobs) > 0 {
			results[i].Session = w.WorkerSession
			results[i].Session.Used = max(p.Used, w.Used)
		}
	}
	return results
}

// first returns the build that w would get; nil if there is none.
func (s *fakeStore) first(w *fakeWorker) *fakeBuild {
	for _, b := range s.pending {
		if class := b.class(); w.Takes(&class) {
			return b
		}
	}
	return nil
}

// give gives w the first build that it can take, if there is one.
func (s *fakeStore) give(w *fakeWorker, p store.Poll, r *store.PollResult) {
	if b := s.claim(w); b != nil {
		b.attempt++
		w.Used = max(p.Used, w.Used)
		w.Handed = max(w.Handed, w.Used) + 1024
		b.handed = w.Handed
		w.holds, w.Held = append(w.holds, b), w.Held+1
		s.handed[b.id]++
		r.Jobs, r.Handed = append(r.Jobs, b.job()), b.handed
	}
}

// begin notes a batch and checks that no worker is in two.
func (s *fakeStore) begin(polls []store.Poll) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, p := range polls {
		name := p.WorkerID
		if w := s.find(p); w != nil {
			name = w.ID
		}
		if s.batched[name] {
			s.broken = append(s.broken, name+" is in two batches or twice in one")
		}
		s.batched[name] = true
		names = append(names, name)
	}
	s.batches = append(s.batches, names)
	return names
}

func (s *fakeStore) end(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.batched, name)
	}
}

func (s *fakeStore) find(p store.Poll) *fakeWorker {
	for _, w := range s.workers {
		if w.Number == p.Worker {
			return w
		}
	}
	if p.Shown == 0 {
		return s.workers[p.WorkerID]
	}
	return nil
}

func (s *fakeStore) assign(p store.Poll) (r store.PollResult) {
	w := s.find(p)
	switch {
	case w != nil && w.ID == s.locked:
		return store.PollResult{Outcome: store.PollLocked}
	case w == nil && p.Shown == 0:
		return store.PollResult{Outcome: store.PollUnknownWorker}
	case w == nil:
		return store.PollResult{Outcome: store.PollInvalidToken}
	case p.Parked && (p.Handed != w.Handed || p.Shown != 0 && p.Shown < w.Used):
		return store.PollResult{Outcome: store.PollSuperseded, Session: w.WorkerSession}
	case p.Shown != 0 && p.Shown < w.Used:
		return store.PollResult{Outcome: store.PollInvalidToken, Session: w.WorkerSession}
	}
	known := max(p.Used, w.Used)
	for _, b := range w.unheard(p) {
		r.Jobs, r.Redelivered, r.Handed = append(r.Jobs, b.job()), true, b.handed
	}
	if len(r.Jobs) == 0 && w.Free() {
		s.give(w, p, &r)
	}
	r.Session = w.WorkerSession
	r.Session.Used = known
	return r
}

func (s *fakeStore) claim(w *fakeWorker) *fakeBuild {
	for i, b := range s.pending {
		if class := b.class(); w.Takes(&class) {
			s.pending = append(s.pending[:i:i], s.pending[i+1:]...)
			return b
		}
	}
	return nil
}

func (b *fakeBuild) job() *store.Job {
	return &store.Job{BuildID: b.id, Platform: b.platform, ClassID: b.class().ID, Attempt: b.attempt}
}

// class returns the class of b. A build with requirements is of class gpuClass.
func (b *fakeBuild) class() store.Class {
	if b.platform == "gpu" {
		return gpuClass
	}
	return store.Class{ID: store.PlainClass(b.platform), Platform: b.platform}
}

// gpuClass is a class that only workers with the label gpu take.
var gpuClass = store.Class{ID: gpu, Platform: store.IOS, Require: store.StoredRequire("gpu")}

// The numbers of classes.
const (
	ios     = store.IOSClass
	android = store.AndroidClass
	gpu     = 20
)

// finish frees a worker.
func (s *fakeStore) finish(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workers[id]
	w.holds, w.Held = nil, 0
}

func (s *fakeStore) LowerWatermark(int64) {}

// Elsewhere returns what s.elsewhere says.
func (s *fakeStore) Elsewhere(context.Context, []uint32, int) ([]store.WorkerSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.elsewhere, s.err
}

func (s *fakeStore) Recount(_ context.Context, limit int, known []store.WorkerSession, _ []int32) (store.Recount, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts++
	if s.err != nil {
		return store.Recount{}, s.err
	}
	r := store.Recount{Installation: "here", Now: time.Now(), Unmatched: s.unmatched}
	for _, b := range s.pending {
		i := slices.IndexFunc(r.Pending, func(c store.ClassCount) bool { return c.ID == b.class().ID })
		if i < 0 {
			i, r.Pending = len(r.Pending), append(r.Pending, store.ClassCount{Class: b.class()})
		}
		r.Pending[i].N = min(r.Pending[i].N+1, limit)
	}
	for _, k := range known {
		switch w := s.find(store.Poll{Worker: k.Number}); {
		case w == nil:
			r.Gone = append(r.Gone, k.Number)
		case w.Used > k.Used || w.Handed != k.Handed || w.Held != k.Held || w.Slots != k.Slots || w.Drained != k.Drained || !slices.Equal(w.Platforms, k.Platforms):
			r.Changed = append(r.Changed, w.WorkerSession)
		}
	}
	return r, nil
}

func (s *fakeStore) RecordPresence(_ context.Context, heartbeats []store.Presence) (settled []uint32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	for _, heartbeat := range heartbeats {
		if w := s.find(store.Poll{Worker: heartbeat.Number}); w != nil && w.Used <= heartbeat.Used {
			s.heartbeats++
			w.Used = heartbeat.Used
			settled = append(settled, heartbeat.Number)
		}
	}
	return settled, nil
}

func (s *fakeStore) Sweep(_ context.Context, sw store.Sweep) (store.SweepResult, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return store.SweepResult{}, s.err
	}
	s.swept = append(s.swept, sw)
	return s.sweep, s.sweepErr
}

func (s *fakeStore) CheckClasses(_ context.Context, limit time.Duration) (failed []store.BuildRef, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.classesErr != nil {
		return nil, s.classesErr
	}
	for _, b := range s.pending {
		if limit > 0 && b.platform == "gpu" {
			failed = append(failed, store.BuildRef{ID: b.id, Platform: store.IOS, ClassID: gpu})
		}
	}
	return failed, s.err
}

func (s *fakeStore) LetIn(context.Context) (due []store.BuildRef, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	due, s.due = s.due, nil
	for _, b := range due {
		s.pending = append(s.pending, &fakeBuild{id: b.ID, platform: b.Platform})
	}
	return due, nil
}

func (s *fakeStore) NoteFull(_ context.Context, room store.QueueRoom) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = append(s.full, room)
	return s.err
}

func (s *fakeStore) CheckSuspects(context.Context) (changed []store.WorkerUpdate, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.judged++
	changed, s.suspects = s.suspects, nil
	return changed, s.err
}

func (s *fakeStore) Clock(context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.ahead), s.err
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

// Poll is Arrive, and waits for the reply.
func (q *Queue) Poll(ctx context.Context, req store.PollRequest, wait time.Duration) (store.PollReply, error) {
	await, err := q.Arrive(ctx, req, wait)
	if err != nil {
		return store.PollReply{}, err
	}
	return await(ctx, nil)
}
