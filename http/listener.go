package http

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// borrowedListener lends a listener to an http.Server and gets it back open, although the
// server closes its listener.
type borrowedListener struct {
	net.Listener
	conns    *connections
	deadline func(time.Time) error
	closed   atomic.Bool
}

// connections limits the connections of all servers, the running one and those that
// finish their last requests.
type connections struct {
	most    int    // maximum of connections
	each    int    // maximum per address that has not shown a right key
	refused func() // called for each connection over a maximum

	mu    sync.Mutex // guards what follows
	open  int
	peers map[string]*peer // per address, see quotaAddr
}

// peer is a remote address with open connections.
type peer struct {
	open  int         // guarded by the connections' mu
	known atomic.Bool // a right key was shown on one of them
}

func borrow(ln net.Listener, conns *connections) (*borrowedListener, error) {
	d, ok := ln.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return nil, fmt.Errorf("listener %T has no deadline", ln)
	}
	return &borrowedListener{Listener: ln, conns: conns, deadline: d.SetDeadline}, nil
}

// Accept returns only net.ErrClosed after Close, otherwise the listener's own results.
// Connections are not wrapped, because downloads need the real *net.TCPConn. A connection
// over a maximum is closed at once, because in the backlog it would wait for a reply that
// never comes.
func (l *borrowedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		switch {
		case err != nil && l.closed.Load():
			return nil, net.ErrClosed
		case err != nil:
			return nil, err
		case l.conns.admit(c):
			return c, nil
		}
		l.conns.refused()
		_ = c.Close() // it was never used
	}
}

func (l *connections) admit(c net.Conn) bool {
	addr := peerAddr(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[addr]
	if l.open >= l.most || p != nil && p.open >= l.each && !p.known.Load() {
		return false
	}
	if p == nil {
		p = &peer{}
		l.peers[addr] = p
	}
	l.open++
	p.open++
	return true
}

// count is the server's ConnState hook.
func (l *connections) count(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	addr := peerAddr(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if p := l.peers[addr]; p.open > 1 {
		p.open--
	} else {
		delete(l.peers, addr) // including whether it has shown a right key
	}
}

// peerAddr is the remote address as limits count it.
func peerAddr(c net.Conn) string {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return quotaAddr(a.AddrPort().Addr().Unmap())
	}
	return "" // a listener without addresses
}

// conn is what the server knows about a connection.
type conn struct {
	net.Conn
	peer  *peer
	asked atomic.Bool // a request has arrived
	first *time.Timer // closes the connection if none arrives
}

// connKey is the context key of a *conn.
type connKey struct{}

// accepted is the server's ConnContext hook.
func (l *connections) accepted(ctx context.Context, c net.Conn, limit time.Duration) context.Context {
	l.mu.Lock()
	k := &conn{Conn: c, peer: l.peers[peerAddr(c)]}
	l.mu.Unlock()
	k.first = time.AfterFunc(limit, func() {
		if !k.asked.Load() {
			k.cut()
		}
	})
	return context.WithValue(ctx, connKey{}, k)
}

// connOf is the connection of a request; nil in tests that have none.
func connOf(ctx context.Context) *conn {
	k, _ := ctx.Value(connKey{}).(*conn)
	return k
}

// begin notes that a request has arrived.
func (k *conn) begin() {
	if k != nil && k.asked.CompareAndSwap(false, true) {
		k.first.Stop()
	}
}

// trust notes that a right key was shown.
func (k *conn) trust() {
	if k != nil && !k.peer.known.Load() {
		k.peer.known.Store(true)
	}
}

// cut closes the connection. With TLS it closes the TCP connection, because a TLS close
// would wait for the client.
func (k *conn) cut() {
	if k == nil {
		return
	}
	c := k.Conn
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close()
}

// Close ends a running Accept and leaves the socket open.
func (l *borrowedListener) Close() error {
	l.closed.Store(true)
	return l.deadline(time.Unix(1, 0))
}

// giveBack makes the listener usable again. It must not be called during Accept.
func (l *borrowedListener) giveBack() error {
	if err := l.deadline(time.Time{}); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("resetting listener: %w", err)
	}
	return nil
}
