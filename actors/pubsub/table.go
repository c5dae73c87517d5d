package pubsub

import (
	"maps"
	"slices"
	"sync"

	"takt/actors/otp"
)

// every is the topic of subscribers to all topics.
const every = ""

// subscriber is a process or a function; the other field is nil.
type subscriber struct {
	proc *otp.Proc
	call *func(Event)
}

// table says who has subscribed to what.
type table struct {
	mu sync.RWMutex // guards what follows
	// topics maps a topic to its subscribers. A list is replaced and never changed,
	// because publishers read it without mu.
	topics map[string][]subscriber
	// keeper is the last incarnation of Spec's process. It monitors all
	// subscribed processes.
	keeper *otp.Proc
}

// of returns the subscribers of a topic, and those of all topics.
func (t *table) of(topic string) (some, all []subscriber) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.topics[topic], t.topics[every]
}

// add adds s, to every topic if none is named, and returns the keeper.
func (t *table) add(s subscriber, topics []string) *otp.Proc {
	if len(topics) == 0 {
		topics = []string{every}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range topics {
		t.topics[topic] = append(slices.Clone(t.topics[topic]), s)
	}
	return t.keeper
}

// remove removes s from all topics.
func (t *table) remove(s subscriber) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for topic, list := range t.topics {
		left := slices.DeleteFunc(slices.Clone(list), func(other subscriber) bool { return other == s })
		if t.topics[topic] = left; len(left) == 0 {
			delete(t.topics, topic)
		}
	}
}

// keep makes p the keeper and returns the subscribers. One with several topics appears
// once for each.
func (t *table) keep(p *otp.Proc) []subscriber {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keeper = p
	return slices.Concat(slices.Collect(maps.Values(t.topics))...)
}

// report casts msg to the keeper.
func (t *table) report(msg any) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	otp.Cast(t.keeper, msg)
}
