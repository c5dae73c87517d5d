package edge

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/store"
)

// Within calls f while it holds a unit of a limit for the address of a request. If the unit is taken
// away, the request's context ends and its connection is closed. No unit of a trusted address is
// taken away.
func (s *Server) Within(rule string, c echo.Context, f func() error) error {
	l, addr, req := s.Limit(rule), s.Addr(c), c.Request()
	who := store.Share{Part: addr, Trusted: s.trusted.has(addr, time.Now())}
	if who.Trusted {
		return l.Do(req.Context(), who, f)
	}
	hangUp := hangUp(c)
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	unit, err := l.Take(ctx, who, func(cause error) {
		cancel(cause)
		hangUp()
	})
	if err != nil {
		return err
	}
	defer unit.Release()
	c.SetRequest(req.WithContext(ctx))
	defer c.SetRequest(req)
	if err = f(); err != nil {
		if cut, ok := errors.AsType[*store.Error](context.Cause(ctx)); ok {
			return cut
		}
	}
	return err
}

// hangUp returns a function that closes a request's connection, or with HTTP/2 its stream.
// Any goroutine may call it until the request was answered.
func hangUp(c echo.Context) func() {
	r, reply := c.Request(), http.NewResponseController(c.Response().Writer)
	body, conn := Watched(r), connOf(r.Context())
	return func() {
		if body != nil {
			body.cut()
		}
		_ = reply.SetWriteDeadline(longAgo())
		if r.ProtoMajor < 2 {
			conn.cut()
		}
	}
}

// trustedFor is the shortest time for which an address stays trusted; the longest is twice that.
const trustedFor = 5 * time.Minute

// belongsFor is the same for a worker, see [Server.Belongs].
const belongsFor = time.Hour

// trusted remembers who has recently sent a key, session or signature that its route accepts.
// They get more than others. Safe for concurrent use.
type trusted struct {
	mu sync.RWMutex // guards by
	by recent[struct{}]
}

func newTrusted(life time.Duration) *trusted { return &trusted{by: recent[struct{}]{life: life}} }

func (k *trusted) has(who string, now time.Time) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	_, ok := k.by.get(who, now)
	return ok
}

func (k *trusted) add(who string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.by.put(who, struct{}{}, now)
}

// Addr returns the remote address of a request, as limits count it.
func (s *Server) Addr(c echo.Context) string {
	return quotaAddr(Remote(c.Request(), s.Config.TrustedProxies))
}

// Credentials that are no keys with names, which have no such characters.
const (
	apiCredential   = "\x00api"
	adminCredential = "\x00admin"
	proxyCredential = "\x00proxy"
	// Signature is HubSpot's credential.
	Signature = "\x00signature"
)

// credential returns the credential of a request whose key its route accepted; key is nil if
// that has no name.
func credential(r *Route, key *store.NamedKey) string {
	switch {
	case key != nil:
		return key.Name
	case r.Access == api.AdminKey:
		return adminCredential
	default:
		return apiCredential
	}
}

// credential returns the credential with which the session began, because anybody who has that
// can begin any number of sessions.
func (s *Session) credential() string {
	switch s.Role {
	case RoleKey:
		return s.Key
	case RoleAdmin:
		return adminCredential
	default:
		return apiCredential
	}
}

// ShareOf returns the share of a request: that of its session or its right key, or else of its
// address.
func (s *Server) ShareOf(c echo.Context) (who store.Share) {
	h := c.Request().Header
	if session, _ := c.Request().Context().Value(sessionKey{}).(*Session); session != nil {
		return store.Share{Credential: session.credential(), Part: "session " + session.ID}
	}
	switch key := KeyOf(c); {
	case key != nil:
		who.Credential = key.Name
	case s.Keys.Admin.Is(Header(h, HeaderAdmin)):
		who.Credential = adminCredential
	case s.Keys.API.Is(Header(h, HeaderAPI)):
		who.Credential = apiCredential
	}
	return s.partOf(c, who.Credential)
}

// partOf returns the share of a request's worker or address within a credential. The id of a
// worker counts only after it was checked, because a client may invent ids.
func (s *Server) partOf(c echo.Context, credential string) store.Share {
	if id := Header(c.Request().Header, api.HeaderWorkerID); credential != "" && store.ValidID(id) && s.workers.has(credential+" "+id, time.Now()) {
		return store.Share{Credential: credential, Part: "worker " + id}
	}
	return store.Share{Credential: credential, Part: s.Addr(c)}
}

// Belongs records that a worker was registered with the caller's credential, or got a file that
// only the holder of a build gets.
func (s *Server) Belongs(caller Caller, worker string) {
	credential := apiCredential
	if caller.Key != nil {
		credential = caller.Key.Name
	}
	if who, now := credential+" "+worker, time.Now(); !s.workers.has(who, now) {
		s.workers.add(who, now)
	}
}

// Trust makes the address of a request known and counts its connection for a credential,
// because the request has sent one that its route accepts.
func (s *Server) Trust(c echo.Context, credential string, now time.Time) {
	if k := connOf(c.Request().Context()); k.due(now) {
		k.trust(s.partOf(c, credential), now)
	}
	if len(s.Config.TrustedProxies) == 0 {
		return
	}
	if who := s.Addr(c); !s.trusted.has(who, now) { // the connection may be a proxy's
		s.trusted.add(who, now)
	}
}

// TrustSession is Trust for a session that its route accepts.
func (s *Server) TrustSession(c echo.Context, session *Session, now time.Time) {
	if k := connOf(c.Request().Context()); k.due(now) {
		k.trust(store.Share{Credential: session.credential(), Part: "session " + session.ID}, now)
	}
	s.Trust(c, session.credential(), now)
}
