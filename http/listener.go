package http

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// borrowedListener gives a listener to an http.Server, which closes what it is
// given, and takes it back unharmed.
type borrowedListener struct {
	net.Listener
	deadline func(time.Time) error
	closed   atomic.Bool

	open    atomic.Int64 // connections
	most    int64
	refused func() // called with each connection that is too many
}

func borrow(ln net.Listener, most int, refused func()) (*borrowedListener, error) {
	d, ok := ln.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return nil, fmt.Errorf("listener %T has no deadline", ln)
	}
	return &borrowedListener{Listener: ln, deadline: d.SetDeadline, most: int64(most), refused: refused}, nil
}

// Accept is the listener's own until Close. Connections are not wrapped:
// downloads need the real *net.TCPConn. One that is too many is closed at once:
// left in the queue, it would wait for an answer that nobody gives.
func (l *borrowedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case err != nil && l.closed.Load():
			return nil, net.ErrClosed
		case err != nil:
			return nil, err
		case l.open.Add(1) <= l.most:
			return c, nil
		}
		l.open.Add(-1)
		l.refused()
		_ = c.Close() // it was never used
	}
}

// count is the server's ConnState hook.
func (l *borrowedListener) count(_ net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		l.open.Add(-1)
	}
}

// Close ends a running Accept and leaves the socket open.
func (l *borrowedListener) Close() error {
	l.closed.Store(true)
	return l.deadline(time.Unix(1, 0))
}

// giveBack makes the listener usable again. Nobody may be in Accept any more.
func (l *borrowedListener) giveBack() error {
	if err := l.deadline(time.Time{}); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("resetting listener: %w", err)
	}
	return nil
}
