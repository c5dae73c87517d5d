package pubsub

// table maps topics to subscribers. It is a plain value: whoever owns it
// serialises the access.
type table struct {
	topics map[string]map[*subscriber]struct{}
	all    map[*subscriber]struct{}
}

// subscriber gets events.
type subscriber struct {
	topics []string
	// deliver hands over an event and never blocks. False: the subscriber is
	// too slow or gone.
	deliver func(Event) bool
	// end tells the subscriber that no more events come. It is called once.
	end func()
}

func newTable() *table {
	return &table{topics: map[string]map[*subscriber]struct{}{}, all: map[*subscriber]struct{}{}}
}

// add enters a subscriber.
func (t *table) add(s *subscriber) {
	t.all[s] = struct{}{}
	for _, topic := range s.topics {
		if t.topics[topic] == nil {
			t.topics[topic] = map[*subscriber]struct{}{}
		}
		t.topics[topic][s] = struct{}{}
	}
}

// remove takes a subscriber out and ends it. Removing twice is harmless.
func (t *table) remove(s *subscriber) {
	if _, there := t.all[s]; !there {
		return
	}
	delete(t.all, s)
	for _, topic := range s.topics {
		delete(t.topics[topic], s)
		if len(t.topics[topic]) == 0 {
			delete(t.topics, topic)
		}
	}
	s.end()
}

// publish hands e to the topic's subscribers and removes those who do not take
// it. It returns how many were removed.
func (t *table) publish(e Event) (removed int) {
	for s := range t.topics[e.Topic] {
		if !s.deliver(e) {
			t.remove(s)
			removed++
		}
	}
	return removed
}

// clear ends all subscribers.
func (t *table) clear() {
	for s := range t.all {
		t.remove(s)
	}
}

// heard returns the topics that have subscribers.
func (t *table) heard() map[string]struct{} {
	topics := make(map[string]struct{}, len(t.topics))
	for topic := range t.topics {
		topics[topic] = struct{}{}
	}
	return topics
}
