package edge

import (
	"context"

	"github.com/labstack/echo/v4"
)

// Caller is who sent a request.
type Caller struct {
	// APIKey and AdminKey say that the key was sent and is right.
	APIKey, AdminKey bool
	// WrongAdminKey says that an admin key was sent and is wrong.
	WrongAdminKey bool
	Session       *Session // nil for a program
	Remote        string   // the connection's address, without its port
	Addr          string   // the client's address, as trusted proxies report it
	RequestID     string
}

// Session is a person's session in a browser.
type Session struct {
	ID   string `json:"i"`
	Role string `json:"r"` // RoleAPI or RoleAdmin
	Name string `json:"n"` // of the person, as entered at login, because keys are shared
}

// What a session may do follows from the key with which it began.
const (
	RoleAPI   = "api"
	RoleAdmin = "admin"
)

// Admin reports whether everything is allowed.
func (s *Session) Admin() bool { return s != nil && s.Role == RoleAdmin }

// Actor returns the caller's name for the audit.
func (c Caller) Actor() string {
	switch {
	case c.Session != nil:
		return c.Session.Name + " (" + c.Session.Role + ")@" + c.Remote
	case c.AdminKey:
		return "admin@" + c.Remote
	case c.APIKey:
		return "api@" + c.Remote
	default: // who has a build's token
		return "build token@" + c.Remote
	}
}

// Operator reports whether the caller has shown the admin key, now or when the session began.
func (c Caller) Operator() bool { return c.AdminKey || c.Session.Admin() }

type (
	// callerKey and sessionKey are context keys of a Caller and a *Session.
	callerKey  struct{}
	sessionKey struct{}
)

// CallerOf returns who sent the request that a handler's context belongs to.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// WithSession returns the context of a request with a session that was checked.
func WithSession(ctx context.Context, s *Session) context.Context {
	return context.WithValue(ctx, sessionKey{}, s)
}

// WithCaller returns a handler's context that knows who sent the request, see [CallerOf].
// [Server.Answer] calls it; streams that ask call it themselves.
func (s *Server) WithCaller(ctx context.Context, c echo.Context) context.Context {
	r := c.Request()
	caller := Caller{Remote: RemoteHost(r), Addr: Remote(r, s.Config.TrustedProxies).String(), RequestID: RequestID(c)}
	if key := Header(r.Header, HeaderAPI); key != "" {
		caller.APIKey = s.Keys.API.Is(key)
	}
	if key := Header(r.Header, HeaderAdmin); key != "" {
		caller.AdminKey = s.Keys.Admin.Is(key)
		caller.WrongAdminKey = !caller.AdminKey
	}
	caller.Session, _ = ctx.Value(sessionKey{}).(*Session)
	return context.WithValue(ctx, callerKey{}, caller)
}
