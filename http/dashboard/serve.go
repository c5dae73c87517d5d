package dashboard

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

const (
	// pagePolicy lets a page load its style, script and stream from this host only,
	// and nothing else.
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

// serve serves a route. Its handler runs in a place, unless anybody may call it: then it uses
// memory only. A form is read before it and the page is sent after it, because a client may be
// slow.
func (d *Dashboard) serve(c echo.Context, r *edge.Route) error {
	ctx := c.Request().Context()
	var reply any
	handle := func() (err error) {
		reply, err = r.Handle(d.server.WithCaller(ctx, c), c)
		return err
	}
	err := d.permit(c, r)
	switch ctx = c.Request().Context(); {
	case err != nil:
	case r.Access == api.Visitor:
		err = handle()
	default:
		if c.Request().Method == http.MethodPost {
			err = readForm(c.Request())
		}
		if err == nil {
			err = d.server.Limit(edge.RulePageReadings).Do(ctx, d.server.ShareOf(c), handle)
		}
	}
	return d.finish(c, reply, err)
}

// transfer serves a file as the interface does.
func (d *Dashboard) transfer(c echo.Context, r *edge.Route) error {
	err := d.permit(c, r)
	if err == nil {
		err = d.server.Admit(c, r)
	}
	return d.finish(c, nil, err)
}

// pageOrStream serves a page, or the stream of its changes.
func (d *Dashboard) pageOrStream(p *page) func(c echo.Context, r *edge.Route) error {
	return func(c echo.Context, r *edge.Route) error {
		c.Response().Header().Add("Vary", "Accept")
		if !edge.AcceptsStream(c.Request().Header) {
			return d.serve(c, r)
		}
		if err := d.permit(c, r); err != nil {
			return err
		}
		return d.follow(c, d.newView(c, p))
	}
}

// finish sends a handler's page, or its error as a page.
func (d *Dashboard) finish(c echo.Context, reply any, err error) error {
	switch {
	case errors.Is(err, errLogin):
		return c.Redirect(http.StatusSeeOther, "/login?next="+url.QueryEscape(c.Request().URL.RequestURI()))
	case c.Response().Committed || errors.Is(err, http.ErrAbortHandler):
		return err
	case err != nil:
		reply, err = d.errorPage(c, err)
	}
	if page, ok := reply.(rendered); ok && err == nil {
		c.Response().Header().Set("Content-Security-Policy", pagePolicy)
		c.Response().Header().Set("Referrer-Policy", "same-origin") // see backOf
		d.server.ReplyBytes(c, page.status, []string{"text/html; charset=utf-8"}, page.html)
	}
	return err
}

// noPage shows a browser that there is no page at an address. It reports false for errors
// of other requests.
func (d *Dashboard) noPage(c echo.Context, err error) bool {
	r := c.Request()
	unknown, ok := errors.AsType[*echo.HTTPError](err)
	if !ok || unknown.Code != http.StatusNotFound || r.Method != http.MethodGet || !strings.Contains(r.Header.Get("Accept"), "text/html") ||
		strings.HasPrefix(r.URL.Path, "/api/") || strings.HasPrefix(r.URL.Path, "/admin/") {
		return false
	}
	c.Set(sessionValue, d.sessions.of(r))
	return d.finish(c, nil, store.Wrap(store.NotFound, "There is no page at this address", err)) == nil
}

// maxForm is how many bytes the body of a form on a page may have.
const maxForm = 16 << 10

// readForm reads the body of a POST from a page.
func readForm(r *http.Request) error {
	err := r.ParseForm()
	if _, ok := errors.AsType[*store.Error](err); err == nil || ok {
		return err
	}
	return store.Wrap(store.InvalidArgument, "The form can't be read", err)
}

// errLogin redirects a page request to the login.
var errLogin = errors.New("no session")

// permit checks the origin of a request and the rights of its session.
func (d *Dashboard) permit(c echo.Context, r *edge.Route) error {
	req := c.Request()
	if err := d.sessions.origins.Check(req); err != nil {
		return store.Wrap(store.Forbidden, "This came from another site", err)
	}
	if r.Access == api.Visitor {
		return nil
	}
	s := d.sessions.of(req)
	c.Set(sessionValue, s)
	switch {
	case s == nil && req.Method == http.MethodGet && !edge.AcceptsStream(req.Header):
		return errLogin
	case s == nil:
		return store.NewError(store.Unauthorized, "Your session is over: log in again")
	}
	s.Bear(c)
	c.SetRequest(req.WithContext(edge.WithSession(req.Context(), &s.Session)))
	var err error
	if !r.Own || s.Role != edge.RoleKey || s.Needs(store.ScopeSubmit) != nil { // else the endpoint asks whose build it is
		err = s.opens(r.Access, r.Scope)
	}
	if err == nil {
		d.server.TrustSession(c, &s.Session, time.Now())
	}
	return err
}

// opens returns an error if the session may not open what has an access and a scope. That of a key
// with a name needs the scope: without one admin for what is for operators, else read.
func (s *session) opens(access api.Access, scope store.Scope) error {
	switch {
	case s.Role == edge.RoleKey && scope == "" && access == api.Operator:
		return s.Needs(store.ScopeAdmin)
	case s.Role == edge.RoleKey:
		return s.Needs(cmp.Or(scope, store.ScopeRead))
	case access == api.Operator && !s.Admin():
		return store.NewError(store.Forbidden, "This needs a session with the admin key: log out, and log in with it")
	}
	return nil
}
