package pubsub

import (
	"slices"
	"sync"

	"takt/actors/otp"
)

// every is the topic of those who subscribe to all.
const every = ""

// table maps topics to subscribers.
type table struct {
	mu sync.RWMutex // guards what follows
	// topics have lists that are replaced and never written, because publishers
	// read them without mu.
	topics map[string][]*subscriber
	// process is the last incarnation, which monitors all subscribed processes.
	process *otp.Proc
}

// subscriber is a process, or else a function. Immutable.
type subscriber struct {
	proc *otp.Proc
	call func(Event)
}

// of returns who gets the events of a topic.
func (t *table) of(topic string) (some, all []*subscriber) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.topics[topic], t.topics[every]
}

// add adds a subscriber; no topics means every. It returns the process.
func (t *table) add(s *subscriber, topics []string) *otp.Proc {
	if len(topics) == 0 {
		topics = []string{every}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, topic := range topics {
		t.topics[topic] = append(slices.Clone(t.topics[topic]), s)
	}
	return t.process
}

// remove removes those whom gone names.
func (t *table) remove(gone func(*subscriber) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for topic, list := range t.topics {
		if !slices.ContainsFunc(list, gone) {
			continue
		}
		t.topics[topic] = slices.DeleteFunc(slices.Clone(list), gone)
		if len(t.topics[topic]) == 0 {
			delete(t.topics, topic)
		}
	}
}

// adopt makes p the process, and returns the processes that have subscribed.
func (t *table) adopt(p *otp.Proc) map[*otp.Proc]struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.process = p
	procs := map[*otp.Proc]struct{}{}
	for _, list := range t.topics {
		for _, s := range list {
			if s.proc != nil {
				procs[s.proc] = struct{}{}
			}
		}
	}
	return procs
}

// owner returns the process.
func (t *table) owner() *otp.Proc {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.process
}
