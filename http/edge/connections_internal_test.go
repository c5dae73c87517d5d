package edge

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"takt/http/api"
	"takt/store"
)

// fakeConn is a connection from an address that only notes that it was closed.
type fakeConn struct {
	net.Conn
	addr   string
	closed bool
}

func (c *fakeConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.addr), 1))
}

func (c *fakeConn) Close() error {
	c.closed = true
	return nil
}

// door admits fake connections.
type door struct {
	*testing.T
	*connections
}

func newDoor(t *testing.T, most int, proxies ...netip.Prefix) *door {
	t.Helper()
	cfg := Config{MaxConnections: most, MaxPerAddress: most / 8, TrustedProxies: proxies}
	return &door{t, newConnections(cfg, newTrusted(trustedFor), func() {})}
}

// dial returns a connection from addr, nil if it was not admitted.
func (d *door) dial(addr string) *fakeConn {
	c := &fakeConn{addr: addr}
	if !d.admit(c) {
		return nil
	}
	require.LessOrEqual(d, len(d.open), d.most)
	return c
}

// show returns a connection that has shown a credential.
func (d *door) show(addr, credential, part string) *fakeConn {
	c := d.dial(addr)
	require.NotNil(d, c)
	d.conn(c).trust(store.Share{Credential: credential, Part: part}, time.Now())
	return c
}

func (d *door) conn(c *fakeConn) *conn { return d.open[c] }

func (d *door) requireOpen(conns []*fakeConn, why string) {
	d.Helper()
	for i, c := range conns {
		require.False(d, c.closed, "%s: %d of %d", why, i, len(conns))
	}
}

// openOf counts the open ones of some connections.
func openOf(conns []*fakeConn) (n int) {
	for _, c := range conns {
		if c != nil && !c.closed {
			n++
		}
	}
	return n
}

func TestACredentialDoesNotHoldAllConnections(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 64)
	var fleet, low []*fakeConn
	for i := range 20 {
		fleet = append(fleet, d.show("192.0.2.1", "fleet", fmt.Sprint("worker ", i)))
	}
	for range 200 {
		low = append(low, d.show("192.0.2.2", "low", "x"))
	}
	require.Equal(t, 64-20, openOf(low), "nobody else needs them")
	d.requireOpen(fleet, "a lighter credential loses none")
	for i := range 20 { // others come and stay, whatever the heaviest does
		fleet = append(fleet, d.show("192.0.2.1", "fleet", fmt.Sprint("late worker ", i)))
		probe := d.dial("192.0.2.3")
		require.NotNil(t, probe)
		for range 10 {
			low = append(low, d.show("192.0.2.2", "low", "x"))
		}
		require.False(t, probe.closed)
		d.count(probe, http.StateClosed)
		if len(fleet) <= 28 {
			d.requireOpen(fleet, "as many for each")
		}
	}
	require.InDelta(t, openOf(low), openOf(fleet), 1, "as many for each")
}

func TestAKnownAddressDoesNotHoldAllConnections(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 64)
	worker := d.show("192.0.2.1", "low", "x")
	var flood []*fakeConn
	for range 200 {
		flood = append(flood, d.dial("192.0.2.1"))
	}
	require.Equal(t, 63, openOf(flood), "nobody else needs them")
	var others []*fakeConn
	for i := range 7 {
		others = append(others, d.dial(fmt.Sprint("192.0.2.", 10+i)))
		for range 20 {
			flood = append(flood, d.dial("192.0.2.1"))
		}
	}
	d.requireOpen(others, "it takes none from lighter ones")
	require.False(t, worker.closed, "connections that have shown its key are its key's")
}

// Somebody in an office opens connections as fast as possible. Workers there still come in.
func TestConnectionsOfAnOfficeAreNotShutOutByOneGuesserThere(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		d := newDoor(t, 256)
		var others, workers []*fakeConn
		for i := range 50 {
			others = append(others, d.dial(fmt.Sprint("198.51.100.", i)))
		}
		if known {
			workers = append(workers, d.show("192.0.2.1", "fleet", "worker"))
		}
		for i := range 100 { // a fleet that reconnects
			for range 20 {
				d.dial("192.0.2.1")
			}
			w := d.dial("192.0.2.1")
			require.NotNil(t, w)
			for range 10 { // before it has sent its request
				d.dial("192.0.2.1")
			}
			require.False(t, w.closed, "the newest is not the one to close")
			d.conn(w).trust(store.Share{Credential: "fleet", Part: fmt.Sprint("worker ", i)}, time.Now())
			workers = append(workers, w)
		}
		d.requireOpen(workers, "who has shown a key stays")
		d.requireOpen(others, "other addresses have a connection each")
	}
}

func TestBusyConnectionsAreNotClosedForIdleOnes(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 64)
	var parked, idle []*fakeConn
	for i := range 32 {
		c := d.show("192.0.2.1", "fleet", fmt.Sprint("worker ", i))
		d.conn(c).busy.Store(1)
		parked = append(parked, c)
	}
	for range 12 { // each has fewer than the fleet
		idle = append(idle, d.show("192.0.2.2", "low", "x"), d.show("192.0.2.3", "lower", "x"))
	}
	for i := range 200 {
		d.dial(fmt.Sprint("198.51.100.", i))
		idle = append(idle, d.show("192.0.2.2", "low", "x"), d.show("192.0.2.3", "lower", "x"))
	}
	d.requireOpen(parked, "parked polls are busy")
	require.Positive(t, openOf(idle))
}

func TestTheHeaviestPartOfACredentialLosesConnections(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 64)
	var honest []*fakeConn
	for i := range 20 {
		honest = append(honest, d.show("192.0.2.1", "fleet", fmt.Sprint("worker ", i)))
	}
	for range 200 {
		d.show("192.0.2.1", "fleet", "worker greedy")
	}
	d.requireOpen(honest, "of one credential, too")
}

func TestConnectionsOfATrustedProxyBelongToNobody(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 64, netip.MustParsePrefix("10.0.0.0/8"))
	var conns []*fakeConn
	for range 40 {
		conns = append(conns, d.dial("10.0.0.1"))
	}
	d.requireOpen(conns, "it brings the connections of many")
	d.conn(conns[0]).trust(store.Share{Credential: "low", Part: "x"}, time.Now())
	require.Equal(t, proxyCredential, d.conn(conns[0]).share.name)
	require.NotContains(t, d.holders, "low")
	for i := range 100 {
		d.dial(fmt.Sprint("198.51.100.", i))
		conns = append(conns, d.dial("10.0.0.1"))
	}
	require.InDelta(t, 64-8, openOf(conns), 1, "a part is kept for those that have shown no credential")
}

func TestConnectionsAreForgotten(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 64)
	a, b, c := d.dial("192.0.2.1"), d.show("192.0.2.1", "key", "x"), d.show("192.0.2.1", "key", "y")
	late := d.conn(a)
	for _, gone := range []*fakeConn{b, a, c} {
		d.count(gone, http.StateClosed)
		d.count(gone, http.StateClosed)
	}
	late.trust(store.Share{Credential: "key", Part: "x"}, time.Now()) // after it was closed
	require.Empty(t, d.open)
	require.Empty(t, d.unknown)
	require.Empty(t, d.holders)
	require.Zero(t, d.proven)
}

// A worker's id makes a share of its own only once it was checked, and only for the credential
// for which it was.
func TestSharesAreNotMadeByInventedWorkers(t *testing.T) {
	t.Parallel()
	const apiKey, lowKey = "test-api-key-0123456789", "takt_low-0123456789"
	ring := &store.KeyRing{}
	ring.Set([]store.NamedKey{{Name: "low", Digest: sha256.Sum256([]byte(lowKey)), Scopes: []store.Scope{store.ScopeWorker}}})
	s := New(Deps{Logger: zerolog.Nop(), Ring: ring}, Config{APIKey: apiKey}.WithDefaults())
	var who store.Share
	s.Handle(Route{Method: "GET", Path: "/x", Access: api.APIKey, Scope: store.ScopeWorker, Serve: func(c echo.Context, _ *Route) error {
		who = s.ShareOf(c)
		return nil
	}})
	ask := func(key, worker string) store.Share {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x", nil)
		r.Header.Set("X-API-Key", key)
		r.Header.Set("X-Worker-Id", worker)
		s.Handler().ServeHTTP(httptest.NewRecorder(), r)
		return who
	}
	address := ask(apiKey, "").Part
	require.Equal(t, store.Share{Credential: apiCredential, Part: address}, ask(apiKey, "w"), "the address's")
	s.Belongs(Caller{APIKey: true}, "w")
	require.Equal(t, store.Share{Credential: apiCredential, Part: "worker w"}, ask(apiKey, "w"))
	require.Equal(t, store.Share{Credential: "low", Part: address}, ask(lowKey, "w"), "it is another's")
	s.Belongs(Caller{Key: &store.NamedKey{Name: "low"}}, "v")
	require.Equal(t, store.Share{Credential: "low", Part: "worker v"}, ask(lowKey, "v"))
}

func TestTheAuditNamesTheClientBehindAProxy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ addr, want string }{
		{"203.0.113.9", "admin@203.0.113.9 via 127.0.0.1"}, {"127.0.0.1", "admin@127.0.0.1"}, {"", "admin@127.0.0.1"},
	} {
		require.Equal(t, c.want, Caller{AdminKey: true, Remote: "127.0.0.1", Addr: c.addr}.Actor())
	}
	for _, c := range []Caller{{Key: &store.NamedKey{Name: "ci"}}, {APIKey: true}, {Session: &Session{Name: "Ada", Role: RoleAPI}}} {
		require.Equal(t, c.Name()+"@127.0.0.1", Caller{Key: c.Key, APIKey: c.APIKey, Session: c.Session, Remote: "127.0.0.1"}.Actor())
	}
}

// BenchmarkRequest is a request with the API key on a connection that has sent one.
func BenchmarkRequest(b *testing.B) {
	s := New(Deps{Logger: zerolog.Nop()}, Config{APIKey: "test-api-key-0123456789", MaxConnections: 64}.WithDefaults())
	s.Handle(Route{Method: "GET", Path: "/x", Access: api.APIKey, Class: api.Query, Serve: s.Probe, Handle: func(context.Context, echo.Context) (any, error) {
		return Reply{Status: http.StatusNoContent}, nil
	}})
	c := &fakeConn{addr: "192.0.2.1"}
	require.True(b, s.conns.admit(c))
	ctx := s.conns.accepted(b.Context(), c, time.Minute)
	h := s.Handler()
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/x", nil)
		r.Header["X-Api-Key"] = []string{"test-api-key-0123456789"}
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
}
