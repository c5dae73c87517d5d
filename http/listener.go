package http

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

// borrowedListener gives a listener to an http.Server, which closes what it is
// given, and takes it back unharmed.
type borrowedListener struct {
	net.Listener
	deadline func(time.Time) error
	closed   atomic.Bool
}

func borrow(ln net.Listener) (*borrowedListener, error) {
	d, ok := ln.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return nil, fmt.Errorf("listener %T has no deadline", ln)
	}
	return &borrowedListener{Listener: ln, deadline: d.SetDeadline}, nil
}

// Accept is the listener's own until Close. Connections are not wrapped:
// downloads need the real *net.TCPConn.
func (l *borrowedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && l.closed.Load() {
		return nil, net.ErrClosed
	}
	return c, err
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
