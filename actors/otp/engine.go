package otp

import (
	"fmt"
	"log/slog" //nolint:depguard // protoactor logs with it
	"strconv"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
)

// This is the only file that knows protoactor. It is used for what it is good
// at: an actor per server with system messages before user messages. Its
// supervision, names, futures, watches and timers are not used.

// engine is the actor system under a [System].
type engine struct {
	actors *actor.ActorSystem
	pool   *dispatcher
}

func newEngine(logger zerolog.Logger) *engine {
	actors := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(zerolog.NewSlogHandler(logger.Level(max(logger.GetLevel(), zerolog.WarnLevel))))
	}))
	return &engine{actors: actors, pool: &dispatcher{}}
}

// spawn makes the actor of s. Init runs in the actor's own goroutine.
func (e *engine) spawn(s *server) {
	props := actor.PropsFromProducer(
		func() actor.Actor { return host{s} },
		actor.WithMailbox(func() actor.Mailbox { return nativeMailbox{s.p.box} }),
		actor.WithDispatcher(e.pool),
	)
	// The id is unique for ever: a late finisher must not unregister a successor.
	_, err := e.actors.Root.SpawnNamed(props, s.p.Path()+"#"+strconv.FormatUint(s.p.id, 10))
	if err != nil {
		s.p.fail(fmt.Errorf("spawning %s: %w", s.p.Path(), err))
		s.p.finish()
	}
}

// close ends the actor system. It stops no actor.
func (e *engine) close() {
	e.pool.close()
	e.actors.Shutdown()
}

// host is the actor in which a server lives.
type host struct{ s *server }

// Receive is a table of contents: what protoactor delivers, and what we do.
func (h host) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *actor.Started:
		h.s.boot()
	case *batch:
		h.s.serve(m.letters)
	case wake: // only look at the state, below
	case *actor.Stopped: // unregistered: nothing of ours can fail any more
		h.s.p.finish()
		return
	default: // Stopping
		return
	}
	if h.s.ended() {
		c.Stop(c.Self())
	}
}

// nativeMailbox shows our mailbox to protoactor.
type nativeMailbox struct{ box *mailbox }

func (m nativeMailbox) PostUserMessage(message any) {
	m.box.post(letter{kind: infoLetter, body: message})
}
func (m nativeMailbox) PostSystemMessage(message any) { m.box.postSystem(message) }
func (m nativeMailbox) Start()                        { m.box.start() }
func (m nativeMailbox) UserMessageCount() int         { return m.box.length() }

func (m nativeMailbox) RegisterHandlers(invoker actor.MessageInvoker, _ actor.Dispatcher) {
	m.box.register(invoker)
}
