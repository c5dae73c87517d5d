package heijunka

import (
	"errors"

	"takt/actors/otp"
)

// The messages.
type (
	ping struct{} // call: are you there?
	pong struct { // its answer
		Busy           bool
		Served, Failed int64
	}
)

// worker is the process of a lane. It is not asked by requests, which would cost
// each of them a message there and back: its life is what counts. A request that
// holds the lane is cancelled when the worker crashes, and a worker that does not
// answer pings is replaced. A restart loses nothing: what is counted is the
// lane's.
type worker struct {
	otp.Base
	lane *lane
}

// Init takes the lane, which may have a request already: then its worker was
// stopped under it.
func (w *worker) Init(c *otp.Ctx) error {
	l, self := w.lane, c.Self()
	if !l.pool.up(l, self) {
		return otp.Ignore // the request has ended meanwhile
	}
	self.Watch(func(reason error) { l.pool.down(l, self, crashed(reason)) })
	return nil
}

// crashed reports whether a process ended otherwise than it was told to.
func crashed(reason error) bool {
	return !errors.Is(reason, otp.ErrShutdown) && !errors.Is(reason, otp.ErrNormal)
}

// HandleCall implements otp.Server.
func (w *worker) HandleCall(c *otp.Ctx, from otp.From, req any) (any, error) {
	if _, ok := req.(ping); !ok {
		return w.Base.HandleCall(c, from, req)
	}
	l := w.lane
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return pong{Busy: l.busy, Served: l.served, Failed: l.failed}, nil
}
