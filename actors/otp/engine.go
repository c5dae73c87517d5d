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
// the middleware needs one. It implements protoactor's Mailbox, with four methods in
// mailbox.go.
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
