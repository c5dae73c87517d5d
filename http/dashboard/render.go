package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/edge"
	"takt/http/forecast"
	"takt/store"
)

//go:embed html
var dashFiles embed.FS

// templates are the pages: each file is one in the frame of layout.html. All dashboards of a
// process share them, because html/template escapes a page when it is first executed.
var templates = sync.OnceValue(func() map[string]*template.Template { //nolint:gochecknoglobals // a constant, made when needed
	frame := template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"ago": ago, "clock": clock, "span": forecast.Span, "rough": forecast.Rough, "size": bytesText, "bytes": func(f float64) string { return bytesText(int64(f)) }, "percent": percent, "num": number3, "num2": func(f float64) string { return number3(math.Round(f*100) / 100) }, "some": some,
		"plain": func(s any) string { return plain(fmt.Sprint(s)) }, "clip": clip, "plural": plural, "since": time.Since, "periods": func() any { return periods }, "usual": usualText,
		"list":   func(v ...any) []any { return v },
		"escape": url.PathEscape, "query": url.QueryEscape,
		"reason": func(id string, required bool) reasonField { return reasonField{id, required} },
	}).ParseFS(dashFiles, "html/layout.html", "html/parts.html"))
	pages := map[string]*template.Template{}
	for _, path := range must(fs.Glob(dashFiles, "html/*.html")) {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "html/"), ".html")
		if name != "layout" && name != "parts" {
			pages[name] = template.Must(template.Must(frame.Clone()).ParseFS(dashFiles, path))
		}
	}
	return pages
})

// reasonField is the form field for the reason of an act.
type reasonField struct {
	ID       string
	Required bool
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // embedded files are part of the program
	}
	return v
}

// asset is a file that pages load.
type asset struct {
	kind    string
	content []byte
}

// readAssets returns the assets by name, and their version.
func readAssets() (assets map[string]asset, version string) {
	assets = map[string]asset{"dash.css": {kind: "text/css; charset=utf-8"}, "dash.js": {kind: "text/javascript; charset=utf-8"}, "icon.svg": {kind: "image/svg+xml"}, "icon-bad.svg": {kind: "image/svg+xml"}}
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(assets)) {
		a := asset{assets[name].kind, must(dashFiles.ReadFile("html/" + name))}
		sum.Write(a.content)
		assets[name] = a
	}
	return assets, hex.EncodeToString(sum.Sum(nil))[:12]
}

// asset handles GET /assets/:name. The address of an asset changes with its content.
func (d *Dashboard) asset(_ context.Context, c echo.Context) (any, error) {
	a, ok := d.assets[c.Param("name")]
	if !ok {
		return nil, store.NewError(store.NotFound, "Not found")
	}
	if c.QueryParam("v") == d.version {
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
	s.Version = d.version
	if s.Who == nil {
		s.Who = sessionOf(c)
	}
	if s.Who != nil && s.Nav == nil {
		d.frame(ctx, s, d.openTo(s.Who))
	}
	var b bytes.Buffer
	if err := templates()[name].ExecuteTemplate(&b, "layout.html", s); err != nil {
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
