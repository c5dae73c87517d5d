package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"takt/store"
)

// connections limits the open connections of all servers: the running one and those that
// finish their last requests. A connection counts for its address until it shows a credential
// that its route accepts, and then for that credential. When there are most, a new one may
// still be that of a probe or an operator, so the slowest connection of the heaviest share is
// closed for it. Credentials never have all connections: a part is kept for those that have
// shown none, which all are at first. Safe for concurrent use.
type connections struct {
	most    int // maximum of connections
	each    int // maximum per address that is not trusted
	kept    int // kept for connections that have shown no credential
	trusted *trusted
	proxy   func(addr netip.Addr) bool // reports whether an address is a trusted proxy's
	refused func()                     // called for each connection that is closed for others

	mu      sync.Mutex // guards what follows
	open    map[net.Conn]*conn
	unknown map[string]*connShare // connections that have shown no credential, by address
	holders map[string]*connShare // the others, by credential
	proven  int                   // how many connections the holders have
}

func newConnections(cfg Config, trusts *trusted, refused func()) *connections {
	return &connections{
		most: cfg.MaxConnections, each: cfg.MaxPerAddress, kept: max(1, cfg.MaxConnections/8), trusted: trusts, refused: refused,
		proxy: func(addr netip.Addr) bool { return isTrusted(addr, cfg.TrustedProxies) },
		open:  map[net.Conn]*conn{}, unknown: map[string]*connShare{}, holders: map[string]*connShare{},
	}
}

// connShare is the connections of an address, or of a credential.
type connShare struct {
	name  string
	conns []*conn
	parts map[string]int // of a credential: how many connections each worker, session or address has
	known bool           // the address has recently shown an accepted credential
}

// conn is the server's state of a connection.
type conn struct {
	net.Conn // without TLS, because a TLS close would wait for the client
	all      *connections
	addr     string // see peerAddr

	// These are guarded by the connections' mu.
	share *connShare // nil: it was closed for another
	part  string     // in share.parts
	at    int        // index in share.conns

	asked  atomic.Bool  // a request has arrived
	first  *time.Timer  // closes the connection if none arrives
	busy   atomic.Int32 // requests being served
	since  atomic.Int64 // when busy last changed, in Unix nanoseconds
	proven atomic.Int64 // when trust last recorded a credential, in Unix nanoseconds
}

// admit adds a new connection. It returns false if there is no room for it.
func (l *connections) admit(c net.Conn) bool {
	ip, now := peerIP(c), time.Now()
	k := &conn{Conn: c, all: l, addr: quotaAddr(ip)}
	k.since.Store(now.UnixNano())
	known := l.trusted.has(k.addr, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = k
	if l.proxy(ip) { // its connections belong to many clients
		l.join(l.holders, k, proxyCredential, k.addr)
		return len(l.open) <= l.most || l.makeRoom(k)
	}
	l.join(l.unknown, k, k.addr, "")
	k.share.known = known
	switch {
	case len(l.open) > l.most:
		return l.makeRoom(k)
	case !known && len(k.share.conns) > l.each: // the newest may be the one that shows a key
		return l.closeSlowest(k.share, k)
	default:
		return true
	}
}

// makeRoom closes another connection for k. If there is none that may be closed, it forgets k
// and returns false. The caller of this method and those below holds mu, except for count,
// trust and those of a conn.
func (l *connections) makeRoom(k *conn) bool {
	first, second := l.unknown, l.holders
	if l.proven > l.most-l.kept {
		first, second = second, first
	}
	from := heaviest(first, k)
	if from == nil {
		from = heaviest(second, k)
	}
	return l.closeSlowest(cmp.Or(from, k.share), k)
}

// closeSlowest closes the slowest connection of a share for k. If there is none, it forgets k
// and returns false.
func (l *connections) closeSlowest(from *connShare, k *conn) bool {
	slow := from.slowest(k)
	if slow == nil {
		l.remove(k)
		return false
	}
	l.remove(slow)
	slow.cut()
	l.refused()
	return true
}

// maxCompared is how many shares are compared to find the heaviest, and how many of a share's
// connections to find the slowest.
const maxCompared = 64

// Weights of a connection. An address that has recently shown an accepted credential may have
// eight times as many connections that have shown none as others before it loses one, and a
// credential whose connections are all busy four times as many as one that has idle ones.
const (
	unknownWeight = 8
	idleWeight    = 4
)

// heaviest returns the share that has to give up a connection for k, nil if there is none.
func heaviest(shares map[string]*connShare, k *conn) (found *connShare) {
	most, n := 0, 0
	for _, s := range shares { // in random order
		weight := len(s.conns)
		switch {
		case s == k.share && weight == 1:
			weight = 0
		case s.parts != nil && s.slowest(k).busy.Load() == 0:
			weight *= idleWeight
		case s.parts == nil && !s.known:
			weight *= unknownWeight
		}
		if weight > most {
			found, most = s, weight
		}
		if n++; n == maxCompared {
			break
		}
	}
	return found
}

// slowest returns the slowest of some connections of the share, but not k; nil if there is none.
// If the share is a credential's, it prefers idle ones, and then those of the heaviest part.
func (s *connShare) slowest(k *conn) (slow *conn) {
	n := len(s.conns)
	from := 0
	if n > maxCompared {
		from = rand.IntN(n)
	}
	for i := range min(n, maxCompared) {
		if c := s.conns[(from+i)%n]; c != k && (slow == nil || c.compare(slow) < 0) {
			slow = c
		}
	}
	return slow
}

// compare orders connections of a share: those without a request first, then those of the part
// with most connections, then those that have been so for longest.
func (k *conn) compare(other *conn) int {
	return cmp.Or(
		cmp.Compare(min(k.busy.Load(), 1), min(other.busy.Load(), 1)),
		cmp.Compare(k.share.parts[other.part], k.share.parts[k.part]),
		cmp.Compare(k.since.Load(), other.since.Load()),
	)
}

// join adds a connection to a share.
func (l *connections) join(shares map[string]*connShare, k *conn, name, part string) {
	s := shares[name]
	if s == nil {
		s = &connShare{name: name}
		shares[name] = s
	}
	if part != "" {
		if s.parts == nil {
			s.parts = map[string]int{}
		}
		s.parts[part]++
		l.proven++
	}
	k.share, k.part, k.at = s, part, len(s.conns)
	s.conns = append(s.conns, k)
}

// leaveShare is the opposite of join.
func (l *connections) leaveShare(k *conn) {
	s := k.share
	last := s.conns[len(s.conns)-1]
	s.conns[k.at], last.at = last, k.at
	s.conns[len(s.conns)-1] = nil
	s.conns = s.conns[:len(s.conns)-1]
	shares := l.unknown
	if s.parts != nil {
		shares = l.holders
		l.proven--
		if s.parts[k.part]--; s.parts[k.part] == 0 {
			delete(s.parts, k.part)
		}
	}
	if len(s.conns) == 0 {
		delete(shares, s.name)
	}
	k.share = nil
}

// remove forgets a connection.
func (l *connections) remove(k *conn) {
	delete(l.open, k.Conn)
	l.leaveShare(k)
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

// any reports whether connections are open.
func (l *connections) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open) > 0
}

// tcpOf is the connection below TLS.
func tcpOf(c net.Conn) net.Conn {
	if t, ok := c.(*tls.Conn); ok {
		return t.NetConn()
	}
	return c
}

// peerIP returns the remote address of a connection.
func peerIP(c net.Conn) (addr netip.Addr) {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok { // else it is of a listener without addresses
		addr = a.AddrPort().Addr().Unmap()
	}
	return addr
}

// connKey is the context key of a *conn.
type connKey struct{}

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
	k.since.Store(time.Now().UnixNano())
}

// due reports whether trust has to record a credential that was shown on the connection. That
// is so for the first one, and then once a minute, so that the address stays trusted.
func (k *conn) due(now time.Time) bool {
	return k != nil && now.UnixNano()-k.proven.Load() > int64(time.Minute)
}

// trust makes the connection's address trusted, and counts the connection for who's credential
// from now on, because its route accepted that.
func (k *conn) trust(who store.Share, now time.Time) {
	k.proven.Store(now.UnixNano())
	l := k.all
	l.trusted.add(k.addr, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.unknown[k.addr]; s != nil {
		s.known = true
	}
	if k.share != nil && k.share.parts == nil {
		l.leaveShare(k)
		l.join(l.holders, k, who.Credential, who.Part)
	}
}

// cut closes the connection.
func (k *conn) cut() {
	if k != nil {
		_ = k.Close()
	}
}

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
