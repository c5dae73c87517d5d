package otp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Server is the behaviour of a process with a mailbox, like gen_server in OTP. All
// methods run in the process's own goroutine, one at a time. A panic in any of them
// is a crash of the process. Each incarnation gets a new value.
type Server interface {
	// Init prepares the process. The start waits for it and returns its error;
	// [Ignore] means that the process is not needed.
	Init(c *Ctx) error
	// HandleCall answers a request. The error goes to the caller and is not a
	// failure of the process. Return [NoReply] to answer later with from.Reply.
	HandleCall(c *Ctx, from From, req any) (any, error)
	// HandleCast gets messages without a waiting caller.
	HandleCast(c *Ctx, msg any)
	// HandleInfo gets messages that the process requested: timers, [Down], results
	// of Async.
	HandleInfo(c *Ctx, msg any)
	// Terminate runs once, when the process ends for any reason but a kill.
	// c.Stop in it replaces the reason.
	Terminate(c *Ctx, reason error)
}

// Base has a default for every method of [Server] but Init. Embed it.
type Base struct{}

// HandleCall refuses the request.
func (Base) HandleCall(c *Ctx, _ From, req any) (any, error) {
	c.unexpected("call", req)
	return nil, fmt.Errorf("%s: unexpected call %T", c.Name(), req)
}

// HandleCast logs the message.
func (Base) HandleCast(c *Ctx, msg any) { c.unexpected("cast", msg) }

// HandleInfo logs the message.
func (Base) HandleInfo(c *Ctx, msg any) { c.unexpected("info", msg) }

// Terminate does nothing.
func (Base) Terminate(*Ctx, error) {}

// BatchServer is a Server that gets all queued messages at once, for group commit.
// HandleBatch replaces HandleCall, HandleCast and HandleInfo. It answers calls with
// From.Reply, in the callback or later. If it panics, the calls of all callers in the
// batch fail. The slice is reused after the callback.
type BatchServer interface {
	Server
	HandleBatch(c *Ctx, msgs []Msg)
}

// notice is a message body that is made at delivery. It may no longer be wanted then, or
// may have handled itself.
type notice func() (body any, wanted bool)

// server runs a Server.
type server struct {
	p       *Proc
	make    func() Server
	box     *mailbox
	address address // of box

	messages atomic.Int64 // handled
	busy     atomic.Int64 // nanoseconds that they took

	// The following fields belong to the process's own goroutine.
	impl       Server
	batch      BatchServer // impl, if it is one
	ctx        *Ctx
	ready      bool // Init has succeeded
	terminated bool // Terminate has been called

	// The process's mutex guards what follows.
	soft    context.Context         // the process's own, handed to Async
	softEnd context.CancelCauseFunc // ends soft, when the process is asked to end
	timers  map[*timer]struct{}
	detail  string // why it is suspended
}

// close stops the timers and closes the mailbox.
func (s *server) close() {
	s.p.mu.Lock()
	for t := range s.timers {
		t.off.Store(true)
		t.clock.Stop()
	}
	s.timers = nil
	s.p.mu.Unlock()
	s.box.close()
}

// boot makes the Server and runs Init.
func (s *server) boot() {
	if s.p.over.Load() {
		return // ended before it began
	}
	err := s.p.takeName()
	if err == nil {
		s.impl = s.make()
		s.batch, _ = s.impl.(BatchServer)
		err = s.impl.Init(s.ctx)
	}
	if err != nil {
		s.p.crash(err)
		return
	}
	s.ready = true
	s.p.succeed()
}

// serve handles messages until the process has to end.
func (s *server) serve(msgs []Msg) {
	for i := range msgs {
		if s.p.over.Load() {
			return
		}
		switch m := &msgs[i]; m.Kind {
		case CallMsg:
			if reply, err := s.impl.HandleCall(s.ctx, m.From, m.Body); reply != any(NoReply) {
				m.From.Reply(reply, err)
			}
		case CastMsg:
			s.impl.HandleCast(s.ctx, m.Body)
		case InfoMsg:
			if m.open() {
				s.impl.HandleInfo(s.ctx, m.Body)
			}
		case orderMsg:
			s.p.stopBy(m.Body)
		}
		s.box.depth.Add(-1)
	}
}

// open replaces a notice by the message that it stands for. It returns false if no message
// is left to be handled.
func (m *Msg) open() (wanted bool) {
	for {
		n, ok := m.Body.(notice)
		if !ok {
			return true
		}
		if m.Body, wanted = n(); !wanted {
			return false
		}
	}
}

// serveAll hands all messages over as one batch. Messages queued after an order to
// end are not handled.
func (s *server) serveAll(msgs []Msg) {
	wanted, order := msgs[:0], (*Msg)(nil)
	for i := range msgs {
		m := &msgs[i]
		if m.Kind == orderMsg {
			order = m
			break
		}
		if m.Kind != InfoMsg || !s.p.over.Load() && m.open() {
			wanted = append(wanted, *m)
		}
	}
	if len(wanted) > 0 && !s.p.over.Load() {
		s.batch.HandleBatch(s.ctx, wanted)
	}
	s.box.depth.Add(int64(-len(msgs)))
	if order != nil {
		s.p.stopBy(order.Body)
	}
}

// terminate ends the callbacks of a process that has to end: it runs Terminate and waits
// for the goroutines of Async.
func (s *server) terminate() {
	if limit := s.p.deadline(); limit != Infinity {
		defer time.AfterFunc(limit, s.p.Kill).Stop()
	}
	if s.ready && !s.terminated && !s.p.killed.Load() {
		s.terminated = true
		s.impl.Terminate(s.ctx, s.p.why())
	}
	s.ctx.release()
}
