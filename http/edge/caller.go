package edge

import (
	"context"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"

	"takt/store"
)

// Caller is who sent a request.
type Caller struct {
	// APIKey and AdminKey are true if the key was sent and is right.
	APIKey, AdminKey bool
	// WrongAdminKey is true if an admin key was sent and is wrong.
	WrongAdminKey bool
	// Key is the named key that was sent, or with which the session began; nil if there is
	// none.
	Key       *store.NamedKey
	Session   *Session // nil for a program
	Remote    string   // the connection's address, without its port
	Addr      string   // the client's address, as trusted proxies report it
	RequestID string
}

// Session is a person's session in a browser.
type Session struct {
	ID   string `json:"i"`
	Role string `json:"r"` // RoleAPI, RoleAdmin or RoleKey
	Name string `json:"n"` // of the person, as entered at login, because keys are shared
	// Key is the name of the key with which it began, if Role is RoleKey.
	Key string `json:"k,omitempty"`

	named *store.NamedKey // that key; set by Renew
}

// What a session may do follows from the key with which it began.
const (
	RoleAPI   = "api"
	RoleAdmin = "admin"
	RoleKey   = "key"
)

// Admin reports whether the session may do everything.
func (s *Session) Admin() bool {
	return s != nil && (s.Role == RoleAdmin || s.named.May(store.ScopeAdmin))
}

// Renew looks up the named key with which the session began. It returns false if that was
// revoked or has expired; the session is then over.
func (s *Session) Renew(k *Keys) bool {
	if s.Role != RoleKey {
		return true
	}
	s.named = k.ring.Named(s.Key)
	return s.named != nil
}

// Needs returns an error if the session's key lacks a scope. Sessions that began with the API
// key or the admin key have no scopes; the route's access decides about them.
func (s *Session) Needs(scope store.Scope) error {
	if s.Role != RoleKey || s.named.May(scope) {
		return nil
	}
	return missing(scope)
}

// Actor returns the caller's name for the audit, such as "admin@127.0.0.1", or behind a trusted
// proxy "admin@203.0.113.9 via 127.0.0.1". The proxy is named because it vouches for the address.
func (c Caller) Actor() string {
	if c.Addr != "" && c.Addr != c.Remote {
		return c.Name() + "@" + c.Addr + " via " + c.Remote
	}
	return c.Name() + "@" + c.Remote
}

// Name is Actor without the address, for those who may not read the audit.
func (c Caller) Name() string {
	switch {
	case c.Session != nil && c.Session.Key != "":
		return c.Session.Name + " (key " + c.Session.Key + ")"
	case c.Session != nil:
		return c.Session.Name + " (" + c.Session.Role + ")"
	case c.Key != nil:
		return "key " + c.Key.Name
	case c.AdminKey:
		return "admin"
	case c.APIKey:
		return "api"
	default: // only a build's token was sent
		return "build token"
	}
}

// Operator reports whether the caller has sent the admin key or a named key with the scope
// admin, now or when the session began.
func (c Caller) Operator() bool {
	return c.AdminKey || c.Session.Admin() || c.Key.May(store.ScopeAdmin)
}

// Needs returns an error if the caller's named key may not reach a build that the key submitter
// submitted. It needs scope, or for its own builds the scope submit. A caller without a named
// key gets no error here.
func (c Caller) Needs(scope store.Scope, submitter string) error {
	if c.Key == nil || c.Key.May(scope) || c.Key.May(store.ScopeSubmit) && submitter == c.Key.Name {
		return nil
	}
	return missing(scope)
}

// KeyName is the name of the caller's key, "" if it has none.
func (c Caller) KeyName() string {
	if c.Key == nil {
		return ""
	}
	return c.Key.Name
}

type (
	// callerKey and sessionKey are context keys of a *callerSource and a *Session.
	callerKey  struct{}
	sessionKey struct{}
)

// CallerOf returns who sent the request that a handler's context belongs to.
func CallerOf(ctx context.Context) Caller {
	if from, ok := ctx.Value(callerKey{}).(*callerSource); ok {
		from.once.Do(from.find)
		return from.caller
	}
	return Caller{}
}

// Bear stores the session's named key in its request, so that streams end when the key does.
func (s *Session) Bear(c echo.Context) {
	if s.named != nil {
		c.Set(namedKey, s.named)
	}
}

// WithSession returns the context of a request with a session that was checked.
func WithSession(ctx context.Context, s *Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, s)
}

// WithCaller returns a context from which [CallerOf] returns who sent the request.
// [Server.Answer] calls it; streams that need the caller call it themselves.
func (s *Server) WithCaller(ctx context.Context, c echo.Context) context.Context {
	from := &callerSource{server: s, request: c.Request(), caller: Caller{RequestID: RequestID(c), Key: KeyOf(c)}}
	if from.caller.Session, _ = ctx.Value(sessionKey{}).(*Session); from.caller.Session != nil {
		from.caller.Key = from.caller.Session.named
	}
	return context.WithValue(ctx, callerKey{}, from)
}

// callerSource finds out who sent a request when that is first needed, because most handlers
// never ask. It has nothing of the echo.Context, which the next request uses.
type callerSource struct {
	server  *Server
	request *http.Request
	once    sync.Once
	caller  Caller
}

func (f *callerSource) find() {
	s, r, caller := f.server, f.request, &f.caller
	caller.Remote, caller.Addr = RemoteHost(r), Remote(r, s.Config.TrustedProxies).String()
	if key := Header(r.Header, HeaderAPI); key != "" {
		caller.APIKey = s.Keys.API.Is(key)
	}
	if key := Header(r.Header, HeaderAdmin); key != "" {
		caller.AdminKey = s.Keys.Admin.Is(key) || s.Keys.Named(key).May(store.ScopeAdmin)
		caller.WrongAdminKey = !caller.AdminKey
	}
}

// namedKey is the name under which a request's [store.NamedKey] is kept in its echo.Context.
const namedKey = "takt key"

// KeyOf returns the named key of a request, nil if it has none.
func KeyOf(c echo.Context) *store.NamedKey {
	k, _ := c.Get(namedKey).(*store.NamedKey)
	return k
}
