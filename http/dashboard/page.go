package dashboard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/attention"
	"takt/http/edge"
	"takt/store"
)

const (
	// pageLimit is how long a page may take to read its data.
	pageLimit = 3 * time.Second
	// pageRows is the number of rows in a list.
	pageRows = 50
	// maxValues is how many values a parameter may have.
	maxValues = 8
)

// view is a request for a page: its id, its query, and the visitor's role.
type view struct {
	page  *page
	id    string
	query url.Values
	Admin bool     // has the rights of the admin key
	open  []string // the paths of the pages that the visitor may open
	Host  string   // the scheme and host that the browser uses
	// tail is the end of the log that an open view sends on; nil for a page. It belongs to
	// the goroutine that makes the view's parts.
	tail *logTail
}

// key identifies a view.
func (v *view) key() string { return fmt.Sprint(v.data(), "\x00", v.Admin, v.open, v.Host) }

// Opens reports whether the visitor may open the page at a path.
func (v *view) Opens(path string) bool { return slices.Contains(v.open, path) }

// data returns the part of key that the page's data depends on.
func (v *view) data() string { return fmt.Sprint(v.page.name, "\x00", v.id, "\x00", v.query.Encode()) }

// Get returns a parameter of the query, which must be one of the page's params.
func (v *view) Get(name string) string {
	if !slices.Contains(v.page.params, name) {
		panic("the page " + v.page.name + " reads the undeclared parameter " + name)
	}
	return v.query.Get(name)
}

// period returns the index of the period that plots show.
func (v *view) period() int {
	for i, p := range periods {
		if p.Name == v.Get("range") {
			return i
		}
	}
	return 0
}

// Period returns the name of the period that plots show.
func (v *view) Period() string { return periods[v.period()].Name }

// All returns all values of a parameter.
func (v *view) All(name string) []string {
	_ = v.Get(name)
	return v.query[name]
}

// Has reports whether value is one of a parameter's values.
func (v *view) Has(name, value string) bool { return slices.Contains(v.All(name), value) }

// Filtered reports whether the query has any parameter.
func (v *view) Filtered() bool { return len(v.query) > 0 }

// With returns the query with new values for some names; "" removes a name. It drops
// the list position, because a changed filter begins at the first page.
func (v *view) With(pairs ...string) string {
	q := maps.Clone(v.query)
	for _, name := range []string{"after", "running", "before"} {
		q.Del(name)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if q.Del(pairs[i]); pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return "?" + q.Encode()
}

// rows selects the page of a list that begins at the cursor in the parameter name.
func (v *view) rows(name string) store.Page {
	return store.Page{After: store.Cursor(v.Get(name)), Limit: pageRows}
}

// list is a part of a list: its rows, and the query of the page with the next ones, "" if there
// are none.
type list[T any] struct {
	Rows []T
	Next string
}

// listOf returns the part of the list whose cursor is in the parameter name. The next part
// begins at next.
func listOf[T any](v *view, name string, rows []T, next store.Cursor) list[T] {
	if next == "" {
		return list[T]{Rows: rows}
	}
	return list[T]{rows, v.With(name, string(next))}
}

// screen is the data for the templates.
type screen struct {
	Title, Section string
	Who            *session
	View           *view
	Page           any
	// Asof is when reading Page began. Stale is why Page is old, or why there is none:
	// then Asof is zero.
	Asof    time.Time
	Stale   string
	Away    bool   // the page could not be read yet
	Done    string // result of the last act
	Path    string // the page with its query, where acts return to
	Version string // of the assets
	// Nav are the links to pages. Now is what needs attention.
	Nav []*page
	Now *attention.Situation
}

// Admin reports whether the visitor has the rights of the admin key.
func (s *screen) Admin() bool { return s.View != nil && s.View.Admin || s.Who.Admin() }

func (d *Dashboard) newView(c echo.Context, p *page) *view {
	id := c.Param("id")
	if id == "" {
		id = c.Param("*")
	}
	q := url.Values{}
	for _, name := range p.params {
		for _, value := range c.QueryParams()[name] {
			if value != "" && len(q[name]) < maxValues {
				q.Add(name, value)
			}
		}
	}
	return &view{page: p, id: store.Text(id), query: q, Admin: sessionOf(c).Admin(), open: d.openTo(sessionOf(c)), Host: c.Scheme() + "://" + c.Request().Host}
}

func (d *Dashboard) showPage(ctx context.Context, c echo.Context, v *view) (any, error) {
	s, err := d.screen(ctx, v)
	name, status := v.page.name, http.StatusOK
	switch {
	case isAway(err):
		s = &screen{Title: v.page.Title, Section: v.page.section(), View: v, Stale: awayText, Away: true}
		if name == "queue" {
			s.Page = d.queuePlots(v) // memory holds them
		}
		name, status = "away", http.StatusServiceUnavailable
		edge.SetRetryAfter(c.Response().Header(), 5*time.Second)
	case err != nil:
		return nil, err
	}
	s.Who, s.Done = sessionOf(c), d.takeDone(c)
	if tree, ok := s.Page.(treeData); ok && s.Done != "" {
		if n := starting(tree.Root.TreeNode); n > 0 {
			s.Done += " " + plural(n, "process") + " still starting."
		}
	}
	s.Path = c.Request().URL.Path + v.With()
	return d.render(ctx, c, status, name, s)
}

// isAway reports whether a page can't be read now, but may be later.
func isAway(err error) bool { return store.IsUnavailable(err) || errors.Is(err, errSlowPage) }

const awayText = "The database is unavailable. No accepted work is lost."

// screen reads the data of v. During a database outage it returns the last data read.
func (d *Dashboard) screen(ctx context.Context, v *view) (*screen, error) {
	s := &screen{Title: v.page.Title, Section: v.page.section(), View: v, Asof: time.Now(), Version: current().version}
	reading, cancel := context.WithTimeoutCause(ctx, pageLimit, errSlowPage)
	defer cancel()
	d.frame(ctx, s, v.open)
	data, err := v.page.load(reading, v)
	if err == nil {
		d.known.keep(v.data(), data, s.Asof)
		s.Page = data
		return s, nil
	}
	if errors.Is(context.Cause(reading), errSlowPage) {
		err = errSlowPage
	}
	known, at, ok := d.known.of(v.data())
	if overview, is := data.(overviewData); is { // it has the last data
		known, ok = overview, true
	}
	if !ok || !isAway(err) {
		return nil, err
	}
	s.Page, s.Asof, s.Stale = known, at, awayText
	return s, nil
}

var (
	errSlowPage = store.NewError(store.Unavailable, "The page took too long to read")
	errAway     = store.NewError(store.Unavailable, "The database is not available")
)
