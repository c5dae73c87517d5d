package dashboard

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/store"
)

// asset handles GET /assets/:name. The address of an asset changes with its content.
func (d *Dashboard) asset(_ context.Context, c echo.Context) (any, error) {
	look := current()
	a, ok := look.assets[c.Param("name")]
	if !ok {
		return nil, store.NewError(store.NotFound, "Not found")
	}
	if c.QueryParam("v") == look.version {
		c.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	d.server.ReplyBytes(c, http.StatusOK, []string{a.kind}, a.content)
	return nil, nil
}

// rendered is a page to be sent.
type rendered struct {
	status int
	html   []byte
}

func (d *Dashboard) render(ctx context.Context, c echo.Context, status int, name string, s *screen) (any, error) {
	look := current()
	s.Version = look.version
	if s.Who == nil {
		s.Who = sessionOf(c)
	}
	if s.Who != nil && s.Nav == nil {
		d.frame(ctx, s, d.openTo(s.Who))
	}
	var b bytes.Buffer
	if err := look.pages[name].ExecuteTemplate(&b, "layout.html", s); err != nil {
		return nil, fmt.Errorf("making the page %s: %w", name, err)
	}
	return rendered{status, b.Bytes()}, nil
}

// errorPage renders an error as a page, and logs it.
func (d *Dashboard) errorPage(c echo.Context, err error) (any, error) {
	ctx := c.Request().Context()
	p, retry := edge.ProblemOf(err, edge.RequestID(c))
	d.server.LogError(c, err, p.Status, ctx.Err() != nil)
	edge.SetRetryAfter(c.Response().Header(), retry)
	return d.render(ctx, c, p.Status, "error", &screen{Title: p.Title, Path: d.backOf(c), Page: p})
}

// backOf returns where the visitor of an error page came from, or else the first page.
func (d *Dashboard) backOf(c echo.Context) string {
	r, back := c.Request(), "/"
	if sessionOf(c) != nil {
		back = d.front
	}
	back = ownPath(r.PostForm.Get("back"), back) // a refused body is never read
	if from, err := url.Parse(r.Referer()); err == nil && from.Host == r.Host && from.RequestURI() != r.URL.RequestURI() {
		back = ownPath(from.RequestURI(), back)
	}
	return back
}
