package otp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// Options of a [System]. The zero value works.
type Options struct {
	// Logger gets unexpected messages.
	Logger zerolog.Logger
	// OnEvent gets every supervision event, in the goroutine in which it happens.
	// It must be quick, safe for concurrent use, and must not call the process that
	// the event is about.
	OnEvent func(Event)
}

const (
	// CallTimeout bounds calls whose context has no deadline.
	CallTimeout = 5 * time.Second
	// KillGrace is how long a killed process may take to notice before it is
	// abandoned.
	KillGrace = 50 * time.Millisecond
)

// System holds processes with their names, supervision trees and goroutines. A
// program has one; tests make their own. All methods may be used concurrently.
type System struct {
	opts   Options
	names  names
	engine *engine
	base   context.Context // parent of every process's context
	slots  sync.Pool       // of *slot
	nextID atomic.Uint64
	born   time.Time
	dumped atomic.Int64 // unix nanoseconds of the last stack dump

	mu      sync.Mutex // guards what follows; never held while taking a Proc's
	closed  bool
	tops    []*Proc            // without supervisor, in start order
	orphans map[*Proc]struct{} // outlived their supervisor
	leaked  map[*Proc]struct{} // abandoned
}

// New makes a system. It starts nothing; end it with [System.Shutdown].
func New(opts Options) *System {
	return &System{
		opts: opts, names: names{owners: map[string]*Proc{}}, engine: newEngine(opts.Logger), born: time.Now(),
		base:    context.Background(), //nolint:forbidigo // processes outlive every caller
		orphans: map[*Proc]struct{}{}, leaked: map[*Proc]struct{}{},
	}
}

// StartRoot starts a supervisor without a parent, under name, and returns when its
// children are up. If ctx ends earlier, the half-started tree is killed. A root is
// never restarted; watch its Done.
func (s *System) StartRoot(ctx context.Context, name string, spec SupSpec) (*Proc, error) {
	return s.startTop(ctx, s.newProc(name, name, &ChildSpec{Supervisor: func() SupSpec { return spec }}))
}

// Start starts a process without a supervisor, for tests and tools, under name
// (empty: none). It returns when Init has succeeded.
func (s *System) Start(name string, mk func() Server) (*Proc, error) {
	path := name
	if path == "" {
		path = "(anonymous)"
	}
	return s.startTop(s.base, s.newProc(path, name, &ChildSpec{Server: mk}))
}

func (s *System) startTop(ctx context.Context, p *Proc) (*Proc, error) {
	begin := p.configure(nil)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("starting %s: %w", p.Path(), ErrShutdown)
	}
	s.tops = append(s.tops, p)
	s.mu.Unlock()
	begin()
	select {
	case <-p.up:
	case <-ctx.Done():
		p.killTree()
		<-p.done
		return nil, fmt.Errorf("starting %s: %w", p.Path(), context.Cause(ctx))
	}
	return s.reportStart(p, p.startError())
}

// reportStart emits the event that says how the start of p went.
func (s *System) reportStart(p *Proc, err error) (*Proc, error) {
	switch {
	case err == nil:
		s.emit(Event{Kind: EventStarted, Proc: p})
		return p, nil
	case errors.Is(err, Ignore):
		s.emit(Event{Kind: EventIgnored, Proc: p})
	default:
		s.emit(Event{Kind: EventStartFailed, Proc: p, Reason: err})
	}
	return nil, err
}

// Leaked returns how many abandoned processes still run.
func (s *System) Leaked() (n int) {
	s.update(func() { n = len(s.leaked) })
	return n
}

// forget removes a process that has ended from those that Shutdown stops.
func (s *System) forget(p *Proc) {
	s.update(func() {
		delete(s.orphans, p)
		s.tops = slices.DeleteFunc(s.tops, func(other *Proc) bool { return other == p })
	})
}

// adopt records an orphan, so that Shutdown can wait for it.
func (s *System) adopt(p *Proc) {
	s.update(func() { s.orphans[p] = struct{}{} })
	p.Watch(func(error) { s.forget(p) })
}

// update reads or changes what the mutex guards.
func (s *System) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// seconds is the clock of restart windows: whole seconds, never set back.
func (s *System) seconds() int64 { return int64(time.Since(s.born) / time.Second) }

// A process is made in three steps, so that it is complete before it can be seen:
// newProc makes it and configure sets what it runs, then it is linked or listed, then it
// begins. It takes its name itself, as in OTP. Proc.up is closed when the start is over.

// newProc makes a process that does nothing yet.
func (s *System) newProc(label, name string, spec *ChildSpec) *Proc {
	p := &Proc{
		sys: s, id: s.nextID.Add(1), label: label, name: name, spec: spec, born: time.Now(),
		up: make(chan struct{}), done: make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancelCause(s.base)
	return p
}

// configure sets what p runs, by its specification; begin starts it.
func (p *Proc) configure(args any) (begin func()) {
	switch c := p.spec; {
	case c.Server != nil:
		return p.asServer(c.Server)
	case c.ServerArgs != nil:
		return p.asServer(func() Server { return c.ServerArgs(args) })
	case c.Task != nil:
		return p.asTask(c.Task)
	case c.TaskArgs != nil:
		return p.asTask(func(ctx context.Context) error { return c.TaskArgs(ctx, args) })
	case c.Supervisor != nil:
		return p.asSupervisor(c.Supervisor)
	default:
		return p.asSupervisor(func() SupSpec { return c.SupervisorArgs(args) })
	}
}

func (p *Proc) asServer(mk func() Server) (begin func()) {
	s := &server{p: p, make: mk, address: p.sys.engine.address(p)}
	s.ctx = &Ctx{s: s}
	s.box = newMailbox(p.spec.Mailbox, p.sys.engine.pool.Schedule, p.crash)
	p.server = s
	return func() { p.sys.engine.spawn(s) }
}

func (p *Proc) asSupervisor(mk func() SupSpec) (begin func()) {
	p.supervisor = &supervisor{p: p, make: mk, links: map[*Proc]struct{}{}}
	return p.asServer(func() Server { return p.supervisor })
}

func (p *Proc) asTask(task func(context.Context) error) (begin func()) {
	return func() { p.sys.engine.pool.Schedule(func() { p.runTask(task) }) }
}
