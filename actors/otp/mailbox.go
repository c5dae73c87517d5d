package otp

import (
	"sync"
	"sync/atomic"
)

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
