package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
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

// placeLimit is how many pages are served at once, and how long a request waits for a place.
var placeLimit = edge.Limit{Most: 16, Wait: 2 * time.Second, Refusal: store.Error{Message: "Too many pages at once, try again"}} //nolint:gochecknoglobals // a constant

// open serves a route that needs no session. It takes no place, because its handlers use
// memory only.
func (d *Dashboard) open(c echo.Context, r *edge.Route) error {
	var reply any
	err := d.permit(c, r, false)
	if err == nil {
		reply, err = r.Handle(d.server.WithCaller(c.Request().Context(), c), c)
	}
	return d.finish(c, reply, err)
}

// guarded serves a route that needs a session. The handler runs in a place; the form is
// read before it and the page is sent after it, because a client may be slow.
func (d *Dashboard) guarded(c echo.Context, r *edge.Route) error {
	var reply any
	err := d.permit(c, r, true)
	if err == nil && c.Request().Method == http.MethodPost {
		err = readForm(c.Request())
	}
	if err == nil {
		reply, err = d.attempt(c, r)
	}
	return d.finish(c, reply, err)
}

// finish sends a handler's page, or shows its error as one.
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
		d.server.ReplyBytes(c, page.status, []string{"text/html; charset=utf-8"}, page.html)
	}
	return err
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
func (d *Dashboard) permit(c echo.Context, r *edge.Route, guarded bool) error {
	req := c.Request()
	if err := d.sessions.origins.Check(req); err != nil {
		return store.Wrap(store.Forbidden, "This came from another site", err)
	}
	if !guarded {
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
	d.server.Trust(c, time.Now())
	c.SetRequest(req.WithContext(edge.WithSession(req.Context(), &edge.Session{ID: s.ID, Role: string(s.Role), Name: s.Name, Admin: s.Admin()})))
	if r.Access == api.Operator && !s.Admin() {
		return store.NewError(store.Forbidden, "This needs a session with the admin key: log out, and log in with it")
	}
	return nil
}

// attempt runs the handler in one of the places.
func (d *Dashboard) attempt(c echo.Context, r *edge.Route) (any, error) {
	ctx := c.Request().Context()
	release, err := d.places.Take(ctx, "", nil)
	if err != nil {
		return nil, err
	}
	defer release()
	return r.Handle(d.server.WithCaller(ctx, c), c)
}

// show returns the serve function of a page and of its stream.
func (d *Dashboard) show(p *page) func(c echo.Context, r *edge.Route) error {
	return func(c echo.Context, r *edge.Route) error {
		c.Response().Header().Add("Vary", "Accept")
		if edge.AcceptsStream(c.Request().Header) {
			if err := d.permit(c, r, true); err != nil {
				return err
			}
			return d.follow(c, newView(c, p))
		}
		return d.guarded(c, r)
	}
}

// whole returns the handler of a full page.
func (d *Dashboard) whole(p *page) edge.Handler {
	return func(ctx context.Context, c echo.Context) (any, error) { return d.showPage(ctx, c, newView(c, p)) }
}
