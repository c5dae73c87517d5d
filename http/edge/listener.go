package edge

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// borrowedListener is a listener for an http.Server whose Close does not close the listener
// below, so that the next server can use it.
type borrowedListener struct {
	net.Listener
	conns    *connections
	deadline func(time.Time) error
	once     sync.Once
	end      chan struct{} // closed by Close
}

func borrow(ln net.Listener, conns *connections) (*borrowedListener, error) {
	d, ok := ln.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return nil, fmt.Errorf("listener %T has no deadline", ln)
	}
	return &borrowedListener{Listener: ln, conns: conns, deadline: d.SetDeadline, end: make(chan struct{})}, nil
}

// Accept returns the next connection, net.ErrClosed after Close, or another error of the
// listener. After leave it waits for Close. Connections are not wrapped, because downloads
// need the real *net.TCPConn. A connection beyond a maximum is closed immediately, because in
// the backlog its client would wait for a reply that never comes.
func (l *borrowedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // of leave or Close
			<-l.end
			return nil, net.ErrClosed
		case err != nil:
			return nil, err
		case l.conns.admit(c):
			return c, nil
		}
		l.conns.refused()
		_ = c.Close()
	}
}

// leave makes Accept take no more connections; they wait in the socket's backlog.
func (l *borrowedListener) leave() { _ = l.deadline(time.Unix(1, 0)) }

// Close ends a running Accept and leaves the socket open.
func (l *borrowedListener) Close() error {
	err := l.deadline(time.Unix(1, 0)) // before Accept returns, because giveBack may follow
	l.once.Do(func() { close(l.end) })
	return err
}

// giveBack makes the listener usable again. It must not be called during Accept.
func (l *borrowedListener) giveBack() error {
	if err := l.deadline(time.Time{}); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("resetting listener: %w", err)
	}
	return nil
}
