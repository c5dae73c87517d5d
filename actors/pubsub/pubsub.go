package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"takt/actors/otp"
)

// The topics of takt. The argument of job:available is a platform, that of
// settings:changed the setting's key, that of throttle:config "portal:action", that
// of throttle:queue a queue's id.
const (
	QueueUpdated    = "queue:updated"
	JobAvailable    = "job:available"
	BuildAssigned   = "build:assigned"
	BuildUpdated    = "build:updated"
	WorkerUpdated   = "worker:updated"
	SupervisorEvent = "supervisor:event"
	SettingsChanged = "settings:changed"
	ListenerResumed = "listener:resumed"
	WorkerChanged   = "worker:changed"
	HeijunkaUpdated = "heijunka:updated"
	HeijunkaAlert   = "heijunka:alert"
	ThrottleConfig  = "throttle:config"
	ThrottleQueue   = "throttle:queue"
	ThrottleNotice  = "throttle:notice"
)

// DeploymentUpdated says that something about a deployment has changed.
const DeploymentUpdated = "deployment:updated"

// Event is one thing that happened.
type Event struct {
	Topic string
	// Data is what the publisher gave. Of a remote event it is the rest of the
	// notification after the topic, a string: "ios" of "job:available ios".
	Data any
	// Remote says that the event came through PostgreSQL, perhaps from this
	// very process.
	Remote bool
}

// buffer is how many events a Subscription may lag behind.
const buffer = 256

// gap is how long Subscribe waits for a restarting actor.
const gap = time.Second

// Bus is the handle. It may be copied and survives restarts of its actor.
type Bus struct{ state *state }

type state struct {
	ref atomic.Pointer[otp.Ref]
	// heard are the topics that have subscribers, replaced whole by the actor: an
	// event that nobody would hear costs its publisher a look-up and no message.
	heard atomic.Pointer[map[string]struct{}]
	tap   atomic.Pointer[func(Event)]
}

// New returns a bus that carries events once Spec's child runs.
func New() Bus { return Bus{&state{}} }

// Spec is the child that carries the events.
func (b Bus) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "pubsub", Server: func() otp.Server { return &server{bus: b} }}
}

// Publish tells the topic's subscribers. It never blocks.
func (b Bus) Publish(topic string, data any) { b.publish(Event{Topic: topic, Data: data}) }

// PublishRemote tells the topic's subscribers what PostgreSQL notified.
func (b Bus) PublishRemote(topic, argument string) {
	b.publish(Event{Topic: topic, Data: argument, Remote: true})
}

// Tap has f called with every event, whoever listens and whether the actor runs,
// by whoever publishes it: f returns at once and may be called by several
// goroutines. There is one tap; nil takes it away.
func (b Bus) Tap(f func(Event)) {
	if f == nil {
		b.state.tap.Store(nil)
		return
	}
	b.state.tap.Store(&f)
}

func (b Bus) publish(e Event) {
	if tap := b.state.tap.Load(); tap != nil {
		(*tap)(e)
	}
	heard := b.state.heard.Load()
	if heard == nil {
		return
	}
	if _, ok := (*heard)[e.Topic]; !ok {
		return
	}
	if ref := b.state.ref.Load(); ref != nil {
		otp.Cast(*ref, e)
	}
}

// Subscribe returns a subscription to the topics; its user closes it. It waits
// up to 1 s for a restarting actor and then fails with an otp.DownError.
func (b Bus) Subscribe(ctx context.Context, topics ...string) (*Subscription, error) {
	events := make(chan Event, buffer)
	s := &subscriber{
		topics:  topics,
		deliver: func(e Event) bool { return offer(events, e) },
		end:     func() { close(events) },
	}
	carrier, err := b.enter(ctx, subscribe{s: s})
	if err != nil {
		return nil, err
	}
	return &Subscription{carrier: carrier, subscriber: s, events: events}, nil
}

// enter asks the actor to add a subscriber and returns the incarnation that
// has it.
func (b Bus) enter(ctx context.Context, req subscribe) (*otp.Proc, error) {
	ref := b.state.ref.Load()
	if ref == nil {
		return nil, fmt.Errorf("subscribing: %w", &otp.DownError{Name: "pubsub", Reason: otp.ErrNoProc})
	}
	carrier, err := otp.CallWait[*otp.Proc](ctx, *ref, gap, req)
	if err != nil {
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return carrier, nil
}

// offer never blocks.
func offer(events chan<- Event, e Event) bool {
	select {
	case events <- e:
		return true
	default:
		return false
	}
}

// Subscription is one subscriber's end of the bus.
type Subscription struct {
	carrier    *otp.Proc
	subscriber *subscriber
	events     <-chan Event
}

// C delivers the events. It is closed after Close, when the actor has ended,
// and when 256 events wait: then the subscriber subscribes again and reads
// anew what it keeps.
func (s *Subscription) C() <-chan Event { return s.events }

// Close ends the subscription. It never blocks; events that wait in C can still
// be read. Closing twice is harmless.
func (s *Subscription) Close() { otp.Cast(s.carrier, unsubscribe{s.subscriber}) }

// The messages, beside Event.
type (
	subscribe   struct{ s *subscriber } // call, answered with the actor
	unsubscribe struct{ s *subscriber } // cast
)

// server is the actor.
type server struct {
	otp.Base
	bus   Bus
	table *table
}

// Init makes the bus find this actor.
func (s *server) Init(c *otp.Ctx) error {
	s.table = newTable()
	ref := c.System().Ref(c.Name())
	s.tell()
	s.bus.state.ref.Store(&ref)
	return nil
}

// HandleCall enters subscribers.
func (s *server) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	m, ok := req.(subscribe)
	if !ok {
		return s.Base.HandleCall(c, from, req)
	}
	if len(m.s.topics) == 0 {
		return nil, errors.New("no topic given")
	}
	s.table.add(m.s)
	s.tell() // before the answer: from there on the subscriber misses nothing
	return c.Self(), nil
}

// HandleCast carries events.
func (s *server) HandleCast(c *otp.Ctx, msg any) {
	switch m := msg.(type) {
	case Event:
		if n := s.table.publish(m); n > 0 {
			log := c.Logger()
			log.Warn().Str("topic", m.Topic).Int("subscribers", n).Msg("subscribers were too slow and were dropped")
			s.tell()
		}
	case unsubscribe:
		s.table.remove(m.s)
		s.tell()
	default:
		s.Base.HandleCast(c, msg)
	}
}

// tell lets publishers know which topics are heard.
func (s *server) tell() {
	heard := s.table.heard()
	s.bus.state.heard.Store(&heard)
}

// Terminate closes all subscriptions.
func (s *server) Terminate(*otp.Ctx, error) {
	s.table.clear()
	s.tell()
}
