package pubsub

import (
	"runtime/debug"

	"takt/actors/otp"
	"takt/store"
)

// The topics of takt. The argument of job:available names a class (store.Class.Event), that of
// queue:position the lowest position of builds that became pending, that of
// settings:changed the setting's key, that of throttle:config "portal:action", that
// of throttle:queue a queue's id.
const (
	QueueUpdated    = "queue:updated"
	JobAvailable    = "job:available"
	QueuePosition   = "queue:position"
	BuildAssigned   = "build:assigned"
	BuildUpdated    = store.TopicBuildUpdated
	WorkerUpdated   = store.TopicWorkerUpdated
	SupervisorEvent = "supervisor:event"
	SettingsChanged = "settings:changed"
	ListenerResumed = "listener:resumed"
	WorkerChanged   = "worker:changed"
	ThrottleConfig  = "throttle:config"
	ThrottleQueue   = "throttle:queue"

	DeploymentUpdated = "deployment:updated"
)

// Event is one thing that happened.
type Event struct {
	Topic string
	// Data is what the publisher passed. For a remote event it is a string, the rest
	// of the notification after the topic: "ios" of "job:available ios".
	Data any
	// Remote says that the event came through PostgreSQL, whose process Sender sent it. It may
	// have served this process.
	Remote bool
	Sender uint32
}

// Bus is the handle. It may be copied.
type Bus struct{ table *table }

// New returns a bus without subscribers. It works before Spec's child runs.
func New() Bus { return Bus{&table{topics: map[string][]subscriber{}}} }

// Publish hands an event to the topic's subscribers.
func (b Bus) Publish(topic string, data any) { b.publish(Event{Topic: topic, Data: data}) }

// PublishRemote publishes a notification that a process of PostgreSQL has sent.
func (b Bus) PublishRemote(topic, argument string, sender uint32) {
	b.publish(Event{Topic: topic, Data: argument, Remote: true, Sender: sender})
}

func (b Bus) publish(e Event) {
	some, all := b.table.of(e.Topic)
	if len(some)+len(all) == 0 {
		return
	}
	msg := any(e) // one allocation for all subscribers
	for _, list := range [...][]subscriber{some, all} {
		for _, s := range list {
			if s.proc != nil {
				otp.Cast(s.proc, msg)
			} else {
				b.call(*s.call, e)
			}
		}
	}
}

// call keeps a subscriber's panic from its publisher.
func (b Bus) call(f func(Event), e Event) {
	defer func() {
		if value := recover(); value != nil {
			b.table.report(fault{e.Topic, &otp.PanicError{Value: value, Stack: debug.Stack()}})
		}
	}()
	f(e)
}

// Listen casts the topics' events to the process that c belongs to, until it ends. All
// events published after Listen has returned arrive, so a process that reads its state
// after Listen misses no change.
func (b Bus) Listen(c *otp.Ctx, topics ...string) {
	self := c.Self()
	otp.Cast(b.table.add(subscriber{proc: self}, topics), watch{self})
}

// Subscribe calls f with the topics' events, or with all events if no topic is named.
// f runs in the publishers' goroutines, perhaps in several at once, so it must not
// wait. A publisher that has already begun when end is called may still call f.
func (b Bus) Subscribe(f func(Event), topics ...string) (end func()) {
	s := subscriber{call: &f}
	b.table.add(s, topics)
	return func() { b.table.remove(s) }
}

// The casts.
type (
	watch struct{ proc *otp.Proc } // it has subscribed
	fault struct {                 // a function has panicked
		topic string
		err   *otp.PanicError
	}
)

// Spec describes the process that removes ended subscribers from the table.
func (b Bus) Spec() otp.ChildSpec {
	return otp.ChildSpec{ID: "pubsub", Server: func() otp.Server { return &server{table: b.table} }}
}

type server struct {
	otp.Base
	table *table
}

// Init monitors the known subscribers. Later ones send a watch message.
func (s *server) Init(c *otp.Ctx) error {
	for _, known := range s.table.keep(c.Self()) {
		if known.proc != nil {
			c.Monitor(known.proc)
		}
	}
	return nil
}

// HandleCast implements otp.Server.
func (s *server) HandleCast(c *otp.Ctx, msg any) {
	switch m := msg.(type) {
	case watch:
		c.Monitor(m.proc)
	case fault:
		c.Logger().Error().Err(m.err).Str("topic", m.topic).Bytes("stack", m.err.Stack).Msg("subscriber panicked")
	default:
		s.Base.HandleCast(c, msg)
	}
}

// HandleInfo removes a subscriber that has ended.
func (s *server) HandleInfo(c *otp.Ctx, msg any) {
	if down, ok := msg.(otp.Down); ok {
		s.table.remove(subscriber{proc: down.Proc})
		return
	}
	s.Base.HandleInfo(c, msg)
}
