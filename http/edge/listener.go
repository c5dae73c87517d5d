package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
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

// connections limits the open connections of all servers: the running one and those that
// finish their last requests. When there are most, a new one may still be that of a probe or
// an operator, so another one is closed for it: the slowest of the unknown address that has
// most of them. Safe for concurrent use.
type connections struct {
	most    int // maximum of connections
	each    int // maximum per address that is not known
	known   *known
	refused func() // called for each connection that is closed for others

	mu      sync.Mutex // guards what follows
	open    map[net.Conn]*conn
	peers   map[string]*peer   // per address, see quotaAddr
	unknown map[*peer]struct{} // the peers that are not known
}

func newConnections(cfg Config, known *known, refused func()) *connections {
	return &connections{
		most: cfg.MaxConnections, each: cfg.MaxPerAddress, known: known, refused: refused,
		open: map[net.Conn]*conn{}, peers: map[string]*peer{}, unknown: map[*peer]struct{}{},
	}
}

// peer is a remote address with open connections. Once known, it stays so until the last of
// them closes.
type peer struct {
	addr   string
	conns  []*conn      // guarded by the connections' mu
	known  atomic.Bool  // written under that mu
	proven atomic.Int64 // when trust last recorded a right key or signature, in Unix nanoseconds
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

func (l *connections) admit(c net.Conn) bool {
	addr, now := peerAddr(c), time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[addr]
	if p == nil {
		p = &peer{addr: addr}
		p.known.Store(l.known.has(addr, now))
	}
	unknown := !p.known.Load()
	if unknown && len(p.conns) >= l.each || len(l.open) >= l.most && !l.closeSlowest() {
		return false
	}
	k := &conn{Conn: c, all: l, peer: p, at: len(p.conns)}
	k.since.Store(now.UnixNano())
	p.conns = append(p.conns, k)
	l.open[c], l.peers[addr] = k, p
	if unknown {
		l.unknown[p] = struct{}{}
	}
	return true
}

// maxCompared is how many addresses are compared to find the one with most connections.
const maxCompared = 64

// closeSlowest closes the slowest connection of the unknown address that has most, and
// returns false if there is none. The caller holds mu.
func (l *connections) closeSlowest() bool {
	var heaviest *peer
	n := 0
	for p := range l.unknown { // in random order
		if heaviest == nil || len(p.conns) > len(heaviest.conns) {
			heaviest = p
		}
		if n++; n == maxCompared {
			break
		}
	}
	if heaviest == nil {
		return false
	}
	k := slices.MinFunc(heaviest.conns, (*conn).compare)
	l.remove(k)
	k.cut()
	l.refused()
	return true
}

// remove forgets a connection. The caller holds mu.
func (l *connections) remove(k *conn) {
	delete(l.open, k.Conn)
	p := k.peer
	last := p.conns[len(p.conns)-1]
	p.conns[k.at], last.at = last, k.at
	p.conns = p.conns[:len(p.conns)-1]
	if len(p.conns) == 0 {
		delete(l.peers, p.addr)
		delete(l.unknown, p)
	}
}

// count is the server's ConnState hook.
func (l *connections) count(c net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.open[tcpOf(c)]; k != nil { // nil: it was closed for another
		l.remove(k)
	}
}

// trust makes an address known.
func (l *connections) trust(addr string, now time.Time) {
	l.known.add(addr, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.peers[addr]; p != nil && !p.known.Load() {
		p.known.Store(true)
		delete(l.unknown, p)
	}
}

// tcpOf is the connection below TLS.
func tcpOf(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// peerAddr returns the remote address of a connection, as limits count it.
func peerAddr(c net.Conn) string {
	var addr netip.Addr // of a listener without addresses
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		addr = a.AddrPort().Addr().Unmap()
	}
	return quotaAddr(addr)
}

// conn is the server's state of a connection.
type conn struct {
	net.Conn // without TLS, because a TLS close would wait for the client
	all      *connections
	peer     *peer
	at       int // index in peer.conns; guarded by the connections' mu

	asked atomic.Bool  // a request has arrived
	first *time.Timer  // closes the connection if none arrives
	busy  atomic.Int32 // requests being served
	since atomic.Int64 // when busy last changed, in Unix nanoseconds; not kept for known peers
}

// compare orders connections: those without a request first, and among both groups those
// first that have been so for longest.
func (k *conn) compare(other *conn) int {
	return cmp.Or(cmp.Compare(min(k.busy.Load(), 1), min(other.busy.Load(), 1)), cmp.Compare(k.since.Load(), other.since.Load()))
}

// connKey is the context key of a *conn.
type connKey struct{}

// any reports whether connections are open.
func (l *connections) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open) > 0
}

// accepted is the server's ConnContext hook.
func (l *connections) accepted(ctx context.Context, c net.Conn, limit time.Duration) context.Context {
	l.mu.Lock()
	k := l.open[tcpOf(c)]
	l.mu.Unlock()
	if k == nil { // it was closed for another already
		return ctx
	}
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

// begin records that a request has arrived, end that it was answered.
func (k *conn) begin() {
	if k == nil {
		return
	}
	if k.asked.CompareAndSwap(false, true) {
		k.first.Stop()
	}
	k.change(1)
}

func (k *conn) end() {
	if k != nil {
		k.change(-1)
	}
}

func (k *conn) change(by int32) {
	k.busy.Add(by)
	if !k.peer.known.Load() {
		k.since.Store(time.Now().UnixNano())
	}
}

// trust makes the connection's address known, because a right key or signature was sent on it.
// It does so once a minute at most.
func (k *conn) trust(now time.Time) {
	if k != nil && now.UnixNano()-k.peer.proven.Load() > int64(time.Minute) {
		k.peer.proven.Store(now.UnixNano())
		k.all.trust(k.peer.addr, now)
	}
}

// cut closes the connection.
func (k *conn) cut() {
	if k != nil {
		_ = k.Close()
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
