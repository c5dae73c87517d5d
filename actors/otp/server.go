package otp

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Server is what a process with a mailbox does, as gen_server in OTP. All
// methods run in the process's own goroutine, one at a time; a panic in any of
// them is a crash of the process. A fresh value is made for each incarnation.
type Server interface {
	// Init prepares the process; its starter waits for it. An error is the
	// result of the start, [Ignore] says that the process is not wanted.
	Init(c *Ctx) error
	// HandleCall answers a request. The error goes to the caller and is not a
	// failure of the process. Return [NoReply] to answer later with from.Reply.
	HandleCall(c *Ctx, from From, req any) (any, error)
	// HandleCast gets messages that nobody waits for.
	HandleCast(c *Ctx, msg any)
	// HandleInfo gets what the process asked for: timers, [Down], results of
	// Async.
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

// MsgKind tells what a [Msg] is.
type MsgKind uint8

// The kinds of a [Msg].
const (
	CallMsg MsgKind = iota // a request: answer with From.Reply
	CastMsg
	InfoMsg
)

// Msg is one message of a batch.
type Msg struct {
	Kind MsgKind
	From From
	Body any
}

// BatchServer is a Server that takes everything queued at once, for group
// commit. HandleBatch replaces HandleCall, HandleCast and HandleInfo. Requests
// are answered with From.Reply, in the callback or later; a crash in it is a
// crash for all callers in the batch. The slice is reused after the callback.
type BatchServer interface {
	Server
	HandleBatch(c *Ctx, msgs []Msg)
}

// notice is a letter's body that decides at delivery whether it is still wanted.
type notice interface {
	open() (body any, wanted bool)
}

// server is a Server at work.
type server struct {
	p       *Proc
	make    func() Server
	box     *mailbox
	address address // of box
	drain   bool    // an order to end waits its turn in the queue

	messages atomic.Int64 // handled
	busy     atomic.Int64 // nanoseconds that they took

	// Only the process's own goroutine touches what follows.
	impl       Server
	ctx        *Ctx
	msgs       []Msg // reused by BatchServers
	ready      bool  // Init has succeeded
	terminated bool  // Terminate has been called
	cleaned    bool  // nothing is left to do but to go

	// The process's mutex guards what follows.
	soft    context.Context         //nolint:containedctx // the process's own, handed to Async
	softEnd context.CancelCauseFunc // ends soft, when the process is asked to end
	timers  map[*timer]struct{}
	detail  string // why it is suspended
}

// send puts l into the mailbox.
func (s *server) send(l letter) postResult { return s.p.sys.engine.send(s.address, l) }

// close is the part of the end that concerns a server: nothing comes any more.
func (s *server) close() {
	s.p.mu.Lock()
	timers := s.timers
	s.timers = nil
	s.p.mu.Unlock()
	for t := range timers {
		t.stop()
	}
	s.box.close()
}

// boot makes the Server and runs Init.
func (s *server) boot() {
	if s.p.over.Load() {
		return // ended before it began
	}
	s.guard(func() {
		if err := s.init(); err != nil {
			s.p.fail(err)
			return
		}
		s.ready = true
		if !s.p.over.Load() {
			s.p.succeed()
		}
	})
}

func (s *server) init() error {
	if err := s.p.enter(); err != nil {
		return err
	}
	s.impl = s.make()
	s.ctx = &Ctx{s: s}
	return s.impl.Init(s.ctx)
}

// serve handles letters until the process has to end.
func (s *server) serve(letters []letter) {
	if batcher, ok := s.impl.(BatchServer); ok {
		s.guard(func() { s.serveAll(batcher, letters) })
		return
	}
	s.guard(func() {
		for i := range letters {
			if s.p.over.Load() {
				return
			}
			s.handle(&letters[i])
			s.box.handled(1)
		}
	})
}

// handle dispatches one letter.
func (s *server) handle(l *letter) {
	switch l.kind {
	case callLetter:
		reply, err := s.impl.HandleCall(s.ctx, l.from, l.body)
		if reply != any(NoReply) {
			l.from.Reply(reply, err)
		}
	case castLetter:
		s.impl.HandleCast(s.ctx, l.body)
	case infoLetter:
		if body, wanted := opened(l.body); wanted {
			s.impl.HandleInfo(s.ctx, body)
		}
	case orderLetter:
		s.order(l.body)
	}
}

// order ends the process for the reason that an order carries.
func (s *server) order(body any) {
	if reason, ok := body.(error); ok {
		s.p.obey(reason)
	}
}

func opened(body any) (any, bool) {
	if n, ok := body.(notice); ok {
		return n.open()
	}
	return body, true
}

// serveAll hands all letters over as one batch. What is queued behind an order
// to end is not handled any more.
func (s *server) serveAll(batcher BatchServer, letters []letter) {
	msgs, order := s.msgs[:0], any(nil)
	for i := range letters {
		l := &letters[i]
		if l.kind == orderLetter {
			order = l.body
			break
		}
		body, wanted := l.body, true
		if l.kind == infoLetter {
			body, wanted = opened(l.body)
		}
		if wanted {
			msgs = append(msgs, Msg{Kind: MsgKind(l.kind), From: l.from, Body: body})
		}
	}
	if len(msgs) > 0 && !s.p.over.Load() {
		batcher.HandleBatch(s.ctx, msgs)
	}
	clear(msgs)
	s.msgs = msgs[:0]
	s.box.handled(len(letters))
	if order != nil {
		s.order(order)
	}
}

// ended reports whether the process is through; it runs Terminate when the
// process has to end. It is called after everything that was delivered.
func (s *server) ended() bool {
	if !s.p.over.Load() {
		return false
	}
	if s.cleaned {
		return true
	}
	if limit := s.p.deadline(); limit != Infinity {
		defer time.AfterFunc(limit, s.p.Kill).Stop()
	}
	if s.ready && !s.terminated && !s.p.isKilled() {
		s.terminated = true
		s.guard(func() { s.impl.Terminate(s.ctx, s.p.why()) })
	}
	s.ctx.release()
	s.cleaned = true
	return true
}

// unwound is called when something below the callbacks ended the goroutine, or
// panicked although it must not.
func (s *server) unwound(value any) {
	if value != nil || !s.p.over.Load() {
		s.p.crash(recovered(value))
	}
}

// guard runs callbacks. If they panic, or end the goroutine, the process ends.
func (s *server) guard(callbacks func()) {
	finished := false
	defer func() {
		if finished {
			return
		}
		value := recover()
		if s.p.isKilled() {
			s.p.wake(ErrKilled) // it gave up because it was told to
			return
		}
		s.p.crash(recovered(value))
	}()
	callbacks()
	finished = true
}
