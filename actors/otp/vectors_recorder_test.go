package otp_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"takt/actors/otp"
)

// ghost is one process of a scenario: path and n name it.
type ghost struct {
	path, key string
	n         int
	sup       *ghost // its supervisor
	pool      bool   // is a simple_one_for_one supervisor
	proc      *otp.Proc
	exited    bool
}

func (g *ghost) String() string { return fmt.Sprintf("<%s#%d>", g.path, g.n) }

// record is an event and whom it is about.
type record struct {
	event
	who *ghost
	sup *ghost
}

// recorder is a scenario being replayed: what the processes share with the runner.
type recorder struct {
	mu      sync.Mutex // guards what follows
	log     []record
	counts  map[string]int
	latest  map[string]*ghost    // most recently started of a path
	pending map[string]*ghost    // supervisors that are starting
	ghosts  map[*otp.Proc]*ghost // all that have started
	dead    map[*ghost]bool      // supervisors, as far as the log has been read
	words   map[any]string       // invalid values and how the file writes them
	armed   string               // path of the gate
	reached chan *otp.Proc       // the supervisor that is stuck at the gate
	opened  chan struct{}
}

func newRecorder() *recorder {
	return &recorder{
		counts: map[string]int{}, latest: map[string]*ghost{}, pending: map[string]*ghost{},
		ghosts: map[*otp.Proc]*ghost{}, dead: map[*ghost]bool{}, words: map[any]string{},
	}
}

// next numbers a start of path and waits at the gate if that is armed for it.
// supervisor is who would be stuck; it may be nil.
func (w *recorder) next(path string, supervisor *otp.Proc) int {
	w.mu.Lock()
	w.counts[path]++
	n := w.counts[path]
	gate := w.armed == path
	reached, opened := w.reached, w.opened
	if gate {
		w.armed = ""
	}
	w.mu.Unlock()
	if gate {
		reached <- supervisor
		<-opened
	}
	return n
}

func (w *recorder) add(ev string, g *ghost, reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addLocked(ev, g, reason)
}

func (w *recorder) addLocked(ev string, g *ghost, reason error) {
	r := record{event: event{Ev: ev, Path: g.path, N: g.n}, who: g, sup: g.sup}
	if reason != nil {
		text := w.term(reason)
		r.Reason = &text
	}
	w.log = append(w.log, r)
}

// started notes that g runs and can be addressed.
func (w *recorder) started(g *ghost, p *otp.Proc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.proc = p
	w.latest[g.path], w.ghosts[p] = g, g
	w.addLocked("start", g, nil)
}

// onEvent records what the library reports: ends, and starts of supervisors.
func (w *recorder) onEvent(e otp.Event) {
	switch {
	case e.Kind == otp.EventExit:
		w.mu.Lock()
		defer w.mu.Unlock()
		if g := w.ghosts[e.Proc]; g != nil {
			g.exited = true
			w.addLocked("exit", g, e.Reason)
		}
	case e.Type != otp.Supervisor:
	case e.Kind == otp.EventStarted:
		w.started(w.pendingOf(e.Path), e.Proc)
	case e.Kind == otp.EventStartFailed:
		w.add("init_failed", w.pendingOf(e.Path), e.Reason)
	case e.Kind == otp.EventIgnored:
		w.add("init_ignore", w.pendingOf(e.Path), nil)
	}
}

func (w *recorder) pendingOf(path string) *ghost {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending[path]
}

func (w *recorder) current(path string) *ghost {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest[path]
}

func (w *recorder) ghostOf(p *otp.Proc) *ghost {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ghosts[p]
}

// collect takes the log and separates the events of orphans.
func (w *recorder) collect() (events, async []event) {
	w.mu.Lock()
	log := w.log
	w.log = nil
	w.mu.Unlock()
	var inOrder, orphans []record
	for _, r := range log {
		if w.orphan(r.sup) {
			orphans = append(orphans, r)
		} else {
			inOrder = append(inOrder, r)
		}
		if r.Ev == "exit" {
			w.dead[r.who] = true
		}
	}
	slices.SortStableFunc(orphans, func(a, b record) int { return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.N, b.N)) })
	sortPools(inOrder)
	return bare(inOrder), bare(orphans)
}

func (w *recorder) orphan(sup *ghost) bool {
	for ; sup != nil; sup = sup.sup {
		if w.dead[sup] {
			return true
		}
	}
	return false
}

// sortPools sorts each run of ends below one pool by the instances' keys.
func sortPools(log []record) {
	for from := 0; from < len(log); {
		pool, _ := log[from].pool()
		to := from + 1
		for ; to < len(log); to++ {
			if other, _ := log[to].pool(); other != pool {
				break
			}
		}
		if pool != nil {
			slices.SortStableFunc(log[from:to], func(a, b record) int {
				_, x := a.pool()
				_, y := b.pool()
				return strings.Compare(x, y)
			})
		}
		from = to
	}
}

// pool returns the outermost simple_one_for_one supervisor above an end, and the
// key of the instance below it.
func (r record) pool() (pool *ghost, key string) {
	if r.Ev != "exit" && r.Ev != "terminate" {
		return nil, ""
	}
	for g := r.who; g.sup != nil; g = g.sup {
		if g.sup.pool {
			pool, key = g.sup, g.path
		}
	}
	return pool, key
}

func bare(log []record) []event {
	var events []event
	for _, r := range log {
		events = append(events, r.event)
	}
	return events
}

// worker is the Server of a scenario's workers.
type worker struct {
	otp.Base
	w     *recorder
	self  *ghost
	does  start
	quiet bool // it ends by itself
}

// exit is cast to a worker that has to end by itself.
type exit struct{ reason error }

func (x *worker) Init(c *otp.Ctx) error {
	x.self.n = x.w.next(x.self.path, c.Self().Supervisor())
	if r := x.does.ruleFor(x.self.n); r != nil {
		if r.Do == "ignore" {
			x.w.add("init_ignore", x.self, nil)
			return otp.Ignore
		}
		x.w.add("init_failed", x.self, atom(r.Reason))
		return atom(r.Reason)
	}
	x.w.started(x.self, c.Self())
	return nil
}

func (x *worker) HandleCast(c *otp.Ctx, msg any) {
	if e, ok := msg.(exit); ok {
		x.quiet = true
		c.Stop(e.reason)
	}
}

func (x *worker) Terminate(c *otp.Ctx, reason error) {
	if x.quiet || x.does.TrapExit == nil || !*x.does.TrapExit {
		return
	}
	x.w.add("terminate", x.self, reason)
	if x.does.Terminate == nil {
		return
	}
	switch x.does.Terminate.Do {
	case "slow":
		select {
		case <-time.After(time.Duration(x.does.Terminate.Ms) * time.Millisecond):
		case <-c.Context().Done():
		}
	case "hang":
		<-c.Context().Done()
	}
	if e := x.does.Terminate.Exit; e != "" && e != "same" {
		c.Stop(reasonOf(e))
	}
}
