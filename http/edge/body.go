package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// FormSlack is how many bytes a form may have besides its files: boundaries, fields, and
// files of old clients, which takt skips.
const FormSlack = 32 << 20

// smallRest is how many bytes of an unread body net/http discards by itself.
const smallRest = 256 << 10

// minDrain is how many bytes of a refused body are read at least, however few its route accepts.
const minDrain = 8 << 20

// smallStall is how long a client that sends no file may send nothing, or less than the
// least rate. It is short, because the client may hold a place meanwhile.
const smallStall = 5 * time.Second

// Body is a request body with limits: it counts the bytes read, ends a read that stalls or
// is too slow, and fails beyond a maximum. Only the goroutine that reads it may use it,
// except for cut, Keep and expire, which any goroutine may call.
type Body struct {
	io.ReadCloser
	conn  *http.ResponseController
	max   int64         // bytes; more is TooLarge
	stall time.Duration // how long a read may stall
	End   time.Time     // when the whole body must have arrived; zero: no limit
	pace  pace
	waits bool // the client sends nothing before takt reads (Expect: 100-continue)

	read    int64     // bytes
	touched bool      // Read was called
	err     error     // of the last read
	renew   time.Time // when to move the read deadline again
	// Moved, if set, is called with the time of each read.
	Moved func(now time.Time)

	// whole is true once ReadBody has read the body or failed; data and failed are its results.
	whole  bool
	data   []byte
	failed error

	ended atomic.Bool // all of the body has arrived; written by the reader
	off   atomic.Bool // the request was told to end; written by cut
	// kept cancels the context of Keep; it points to nil once the grace period is over.
	kept atomic.Pointer[context.CancelCauseFunc]
}

// pace checks how fast a client sends or reads.
type pace struct {
	least int64         // bytes a second
	grace time.Duration // how long the client is waited for between two checks

	waited time.Duration // time spent waiting for the client since the last check
	moved  int64         // bytes moved meanwhile
}

// tooSlow adds n bytes and the time waited for them, and reports whether the client is
// slower than the least rate.
func (p *pace) tooSlow(n int64, took time.Duration) bool {
	p.waited += took
	p.moved += n
	if p.waited < p.grace {
		return false
	}
	slow := float64(p.moved) < float64(p.least)*p.waited.Seconds()
	p.waited, p.moved = 0, 0
	return slow
}

// watchBody replaces the request's body by a Body, which it returns; nil if there is no body.
func (s *Server) watchBody(c echo.Context, r *Route) *Body {
	req := c.Request()
	if req.Body == nil || req.Body == http.NoBody {
		return nil
	}
	b := &Body{
		ReadCloser: req.Body,
		conn:       http.NewResponseController(c.Response().Writer),
		max:        r.Body,
		waits:      strings.EqualFold(req.Header.Get("Expect"), "100-continue"),
	}
	if r.Class == api.Transfer {
		b.stall, b.pace = s.Config.StallTimeout, pace{least: s.Config.LeastRate, grace: s.Config.LeastRateGrace}
	} else {
		b.End = time.Now().Add(s.Config.ReadTimeout)
		b.stall, b.pace = min(smallStall, s.Config.ReadTimeout), pace{least: s.Config.LeastRate, grace: smallStall}
	}
	req.Body = b
	return b
}

// Watched returns the Body of a request; nil if it has none.
func Watched(r *http.Request) *Body {
	b, _ := r.Body.(*Body)
	return b
}

// cut makes reads of the rest of the body fail. A body that has arrived keeps its deadline,
// because net/http takes an expired one for a client that has left.
func (b *Body) cut() {
	b.off.Store(true)
	if !b.ended.Load() {
		_ = b.conn.SetReadDeadline(longAgo()) // fails on a dead connection only
	}
}

// Keep returns a context for work that continues after the client has left, such as recording
// a file that has arrived completely. It ends when the request was told to end and its grace
// period is over, so that the work does not outlive the request's process. There may be one at
// a time.
func (b *Body) Keep(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	if !b.kept.CompareAndSwap(nil, &end) {
		end(errCut())
	}
	return ctx, func() { end(nil) }
}

// expire cancels the context of Keep, and those of later calls.
func (b *Body) expire() {
	if end := b.kept.Swap(new(context.CancelCauseFunc)); end != nil && *end != nil {
		(*end)(errCut())
	}
}

func errCut() error {
	return store.NewError(store.Unavailable, "The request was given up, try again later")
}

// renewal is how often a deadline is moved, because moving it with every read or write would
// cost too much.
func renewal(stall time.Duration) time.Duration { return min(time.Second, stall/4) }

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	now := time.Now()
	if now.After(b.renew) {
		b.renew = now.Add(renewal(b.stall))
		until := now.Add(b.stall)
		if !b.End.IsZero() && until.After(b.End) {
			until = b.End
		}
		_ = b.conn.SetReadDeadline(until) // if this fails, the read fails too
		if b.off.Load() {
			_ = b.conn.SetReadDeadline(longAgo())
		}
	}
	b.touched = true
	n, err := b.ReadCloser.Read(p)
	b.read += int64(n)
	if b.Moved != nil {
		b.Moved(now)
	}
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	switch {
	case err != nil && b.off.Load():
		err = errCut() // whatever the connection's error is
	case err == nil && b.pace.tooSlow(int64(n), time.Since(now)):
		err = Invalid(fmt.Sprintf("Request body comes too slowly: at least %d bytes a second are needed", b.pace.least))
	}
	if b.err = err; errors.Is(err, io.EOF) {
		b.rearm()
	} else if err != nil {
		return n, err
	}
	if b.read > b.max {
		// b.err stays nil because the rest may still be read and discarded.
		return n, errTooLarge()
	}
	return n, err
}

// rearm removes the read deadline, because net/http takes an expired one for a client that
// has left, and gives the reply its full time, however long the body took.
func (b *Body) rearm() {
	_ = b.conn.SetReadDeadline(time.Time{}) // fails on a dead connection only
	_ = b.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// Finish reads and discards up to smallRest bytes of what is left, so that the connection can
// be reused.
func (b *Body) Finish() {
	if !b.ended.Load() && b.err == nil {
		_, _ = io.CopyN(io.Discard, b, smallRest)
	}
}

// refuse replies with err. If the client is still sending its body, takt then reads and
// discards the rest for a while, because closing the connection immediately would give the
// client a reset instead of the reply.
func (s *Server) refuse(c echo.Context, r *Route, b *Body, err error) {
	if b == nil || errors.Is(b.err, io.EOF) {
		s.writeError(c, err)
		return
	}
	now := time.Now()
	_ = b.conn.SetWriteDeadline(now.Add(writeTimeout))
	if b.err == nil { // otherwise a passed deadline must stay
		_ = b.conn.SetReadDeadline(now.Add(s.Config.ReadTimeout))
	}
	b.Moved = nil
	header, drain := c.Response().Header(), false
	switch left := c.Request().ContentLength - b.read; {
	case c.Request().ProtoMajor >= 2: // only this stream ends, and the answer arrives
	case b.err != nil, b.waits && !b.touched: // no more bytes arrive
		header.Set("Connection", "close")
	case c.Request().ContentLength >= 0 && left <= smallRest: // net/http reads the rest
	default:
		header.Set("Connection", "close")
		if unit, err := s.Limit(RuleRefusedBodies).Take(c.Request().Context(), store.Share{}, nil); err == nil {
			defer unit.Release()
			drain = true
			s.metrics.refused.Inc()
			_ = b.conn.EnableFullDuplex() // HTTP/1 always can
		}
	}
	s.writeError(c, err)
	if !drain {
		return
	}
	_ = b.conn.Flush()
	_ = b.conn.SetReadDeadline(time.Now().Add(s.Config.DrainTimeout))
	_, _ = io.CopyN(io.Discard, b.ReadCloser, max(r.Body, minDrain))
}
