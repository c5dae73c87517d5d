package otp

import (
	"fmt"
	"log/slog" // protoactor logs with it
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
)

// This is the only file that uses protoactor. It provides an actor per server, PIDs
// that address messages, system messages before user messages, and the hook for a
// counting middleware. Its supervision, names, futures, watches and timers are not
// used.

// engine is the actor system under a [System].
type engine struct {
	actors  *actor.ActorSystem
	pool    *dispatcher
	parcels sync.Pool // of *parcel
}

// address is where a server's messages go.
type address struct{ pid *actor.PID }

func newEngine(logger zerolog.Logger) *engine {
	actors := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(zerolog.NewSlogHandler(logger.Level(max(logger.GetLevel(), zerolog.WarnLevel))))
	}))
	return &engine{actors: actors, pool: newDispatcher()}
}

// address returns the address of p. It is never reused, because an actor that ends
// late must not unregister its successor.
func (e *engine) address(p *Proc) address {
	return address{e.actors.NewLocalPID(p.Path() + "#" + strconv.FormatUint(p.id, 10))}
}

// spawn makes the actor of s. Init runs in the actor's own goroutine.
func (e *engine) spawn(s *server) {
	props := actor.PropsFromProducer(
		func() actor.Actor { return host{s} },
		actor.WithMailbox(func() actor.Mailbox { return s.box }),
		actor.WithDispatcher(e.pool),
		actor.WithReceiverMiddleware(s.meter),
	)
	_, err := e.actors.Root.SpawnNamed(props, s.address.pid.GetId())
	if err != nil {
		s.p.crash(fmt.Errorf("spawning %s: %w", s.p.Path(), err))
		s.p.finish(false)
	}
}

// close ends the actor system. It stops no actor.
func (e *engine) close() {
	close(e.pool.closed)
	e.actors.Shutdown()
}

// host is the actor that runs a server.
type host struct{ s *server }

// Receive handles what protoactor delivers.
func (h host) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		h.s.boot()
	case *batch:
		if h.s.batch != nil {
			h.s.serveAll(m.msgs)
		} else {
			h.s.serve(m.msgs)
		}
	case wake: // only look at the state, below
	case *actor.Stopped: // the actor is unregistered
		h.s.p.finish(false)
		return
	default: // Stopping
		return
	}
	if h.s.p.over.Load() {
		h.s.terminate()
		c.Stop(c.Self())
	}
}

// meter is the middleware that counts the messages and the time that they take. It
// reads the clock twice per batch.
func (s *server) meter(next actor.ReceiverFunc) actor.ReceiverFunc {
	return func(c actor.ReceiverContext, envelope *actor.MessageEnvelope) {
		b, ok := envelope.Message.(*batch)
		if !ok {
			next(c, envelope)
			return
		}
		n, begin := len(b.msgs), time.Now()
		defer func() { // runs after runtime.Goexit too
			s.messages.Add(int64(n))
			s.busy.Add(int64(time.Since(begin)))
		}()
		next(c, envelope)
	}
}

// send posts msg to the mailbox of the server's actor.
func (s *server) send(msg Msg) postResult {
	e := s.p.sys.engine
	p, ok := e.parcels.Get().(*parcel)
	if !ok {
		p = &parcel{}
	}
	p.msg, p.result = msg, dropped
	e.actors.Root.Send(s.address.pid, p)
	result := p.result
	p.msg = Msg{}
	e.parcels.Put(p)
	return result
}

// RegisterHandlers sets where to deliver, and puts what is delivered into envelopes, because
// the middleware needs one. It implements protoactor's Mailbox, with four methods below.
func (m *mailbox) RegisterHandlers(inv actor.MessageInvoker, _ actor.Dispatcher) {
	m.invoker = inv
	m.mail, m.alarm = &actor.MessageEnvelope{Message: m.mail}, &actor.MessageEnvelope{Message: m.alarm}
}

// maxIdle is how many idle goroutines a dispatcher keeps.
const maxIdle = 64

// dispatcher runs mailboxes and tasks on kept goroutines. A fresh goroutine per
// wake-up would spend more time on growing its stack than on the message.
type dispatcher struct {
	work   chan func()   // received by idle goroutines
	closed chan struct{} // closed to end them
	idle   atomic.Int32
}

func newDispatcher() *dispatcher {
	return &dispatcher{work: make(chan func()), closed: make(chan struct{})}
}

// Schedule runs fn in a goroutine of its own: a kept one, or a new one.
func (d *dispatcher) Schedule(fn func()) {
	select {
	case d.work <- fn:
	default:
		go d.run(fn)
	}
}

// Throughput is part of protoactor's interface; our mailbox leaves fairness to
// Go's preemption.
func (*dispatcher) Throughput() int { return 300 }

// run runs fn and then further functions, unless enough goroutines are idle already.
// A function that calls runtime.Goexit ends this goroutine only.
func (d *dispatcher) run(fn func()) {
	for {
		fn()
		if d.idle.Add(1) > maxIdle {
			d.idle.Add(-1)
			return
		}
		select {
		case fn = <-d.work:
			d.idle.Add(-1)
		case <-d.closed:
			return
		}
	}
}

// MsgKind is the kind of a [Msg].
type MsgKind uint8

// The kinds of messages.
const (
	CallMsg MsgKind = iota // a request: answer with From.Reply
	CastMsg
	InfoMsg
	orderMsg // Body is the reason for which the process has to end
)

// Msg is one message. It is queued by value, so posting does not allocate.
type Msg struct {
	Kind MsgKind
	From From
	Body any
}

// batch is everything that was queued when the mailbox was emptied.
type batch struct{ msgs []Msg }

// wake is delivered before queued messages when the process has to end.
type wake struct{}

// invoker is the part of protoactor's MessageInvoker that we use.
type invoker interface {
	InvokeSystemMessage(message any)
	InvokeUserMessage(message any)
}

// keepMsgs is the biggest buffer, in messages, that an idle mailbox keeps.
const keepMsgs = 1024

// mailbox is an actor's queue. It differs from protoactor's own mailboxes because of
// supervision: it keeps posts that come before the start, refuses when full instead of
// spinning, hands over all queued messages at once, and goes on after a callback that
// ends its goroutine (runtime.Goexit).
type mailbox struct {
	limit    int                // calls and casts that may wait; 0: no bound
	schedule func(func())       // runs a function in another goroutine
	unwound  func(reason error) // called when a callback unwound the stack
	loop     func()             // process, bound once
	mail     any                // &current, as it is delivered
	alarm    any                // a wake, as it is delivered
	depth    atomic.Int64       // messages not handled yet
	invoker  invoker            // where to deliver; set before the start
	current  batch              // owned by process

	mu     sync.Mutex // guards what follows
	system []any
	queue  []Msg
	spare  []Msg // the empty buffer that queue is swapped with
	poked  bool  // a wake has to be delivered
	open   bool  // started
	busy   bool  // process runs or is scheduled
	closed bool  // the process is dead: posts are dropped
}

func newMailbox(limit int, schedule func(func()), unwound func(error)) *mailbox {
	m := &mailbox{limit: limit, schedule: schedule, unwound: unwound}
	m.loop, m.mail, m.alarm = m.process, &m.current, wake{}
	return m
}

// parcel carries a message through protoactor to a mailbox and the result back.
// Posting is synchronous, so that the sender can be refused.
type parcel struct {
	msg    Msg
	result postResult
}

// IgnoreDeadLetterLogging keeps protoactor from logging a parcel that came too
// late, because its sender gets the result.
func (*parcel) IgnoreDeadLetterLogging() {}

// postResult is the result of posting a message.
type postResult uint8

const (
	posted  postResult = iota
	refused            // the mailbox is full
	dropped            // the process is dead
)

// PostUserMessage queues a parcel's message. A bounded mailbox refuses calls and casts beyond
// its limit. All other messages are always accepted.
func (m *mailbox) PostUserMessage(message any) {
	p, ok := message.(*parcel)
	if !ok {
		return
	}
	m.mu.Lock()
	switch {
	case m.closed:
		p.result = dropped
	case m.limit > 0 && p.msg.Kind <= CastMsg && m.depth.Load() >= int64(m.limit):
		p.result = refused
	default:
		p.result = posted
		m.depth.Add(1)
		m.queue = append(m.queue, p.msg)
		m.wakeLocked()
		return
	}
	m.mu.Unlock()
}

// poke makes the process look at its state before it handles more messages.
func (m *mailbox) poke() {
	m.mu.Lock()
	m.poked = true
	m.wakeLocked()
}

// PostSystemMessage queues one of protoactor's own messages.
func (m *mailbox) PostSystemMessage(message any) {
	m.mu.Lock()
	m.system = append(m.system, message)
	m.wakeLocked()
}

// Start lets the mailbox deliver.
func (m *mailbox) Start() {
	m.mu.Lock()
	m.open = true
	m.wakeLocked()
}

// wakeLocked schedules the loop if it has to and unlocks m.mu.
func (m *mailbox) wakeLocked() {
	run := m.open && !m.busy && (len(m.system) > 0 || m.poked || len(m.queue) > 0)
	if run {
		m.busy = true
	}
	m.mu.Unlock()
	if run {
		m.schedule(m.loop)
	}
}

// close drops queued messages and all later ones.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.queue, m.spare = nil, nil
	m.depth.Store(0)
	m.mu.Unlock()
}

// process delivers until nothing is left: system messages first, then a wake, then all
// messages as one batch. It goes on after a callback that panics, and in another goroutine
// after one that ends this one.
func (m *mailbox) process() {
	done := false
	defer func() {
		if done {
			return
		}
		reason := recovered(recover())
		m.unwound(reason)
		if reason == ErrGoexit { //nolint:errorlint // as it was made
			m.schedule(m.loop)
		} else {
			m.process()
		}
	}()
	for !done {
		m.mu.Lock()
		if used := m.current.msgs; used != nil { // keep the buffer for the next swap
			m.current.msgs = nil
			clear(used)
			if cap(used) <= keepMsgs && !m.closed {
				m.spare = used[:0]
			}
		}
		switch {
		case len(m.system) > 0:
			message := m.system[0]
			m.system = m.system[1:]
			m.mu.Unlock()
			m.invoker.InvokeSystemMessage(message)
		case m.poked:
			m.poked = false
			m.mu.Unlock()
			m.invoker.InvokeUserMessage(m.alarm)
		case len(m.queue) > 0:
			m.current.msgs = m.queue
			m.queue, m.spare = m.spare, nil
			m.mu.Unlock()
			m.invoker.InvokeUserMessage(m.mail)
		default:
			m.busy, done = false, true
			m.mu.Unlock()
		}
	}
}

// UserMessageCount returns the messages that wait or are being handled.
func (m *mailbox) UserMessageCount() int { return int(max(m.depth.Load(), 0)) }
