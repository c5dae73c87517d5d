package http

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"takt/http/api"
	"takt/http/edge"
	"takt/store"
)

//go:embed html
var dashFiles embed.FS

// Dashboard reads the data of the pages.
type Dashboard interface {
	Fleet(ctx context.Context, f store.FleetFilter) (rows []store.FleetRow, states map[string]int, err error)
	FleetSummary(ctx context.Context) ([]store.FleetSummary, error)
	Worker(ctx context.Context, id string) (store.FleetRow, error)
	NamedWorkers(ctx context.Context, text string, limit int) ([]store.Named, error)
	Waiting(ctx context.Context, after int64, limit int) ([]store.PendingBuild, error)
	WaitingBuild(ctx context.Context, id string) (*store.PendingBuild, error)
	Running(ctx context.Context, before int64, limit int) ([]store.RunningBuild, error)
	Durations(ctx context.Context) (map[store.Platform]store.Durations, error)
	Builds(ctx context.Context, f store.BuildSearch) ([]store.Build, error)
	LogPage(ctx context.Context, id string, before int64, limit int) ([]store.LogLine, error)
	Milestones(ctx context.Context, id string) ([]store.Milestone, error)
	Queues(ctx context.Context, portal int64, after store.QueueStatus, limit int) ([]store.QueueStatus, error)
	Deployments(ctx context.Context, before string, limit int) ([]store.Deployment, error)
	Repos(ctx context.Context, deployment string, after store.DeploymentRepo, limit int) ([]store.DeploymentRepo, error)
	Audit(ctx context.Context, f store.AuditFilter) ([]store.AuditEntry, error)
	Pulse(ctx context.Context, since time.Time) (store.Pulse, error)
}

const (
	// pagePolicy lets a page load its style, script and stream from this host only,
	// and nothing else.
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
	// pagePlaces is how many pages are served at once. pagePatience is how long a
	// request waits for a place, and pageLimit how long a page may take to read its
	// data.
	pagePlaces   = 16
	pagePatience = 2 * time.Second
	pageLimit    = 3 * time.Second
	// pageRows is the number of rows in a list, logRows the number of lines in a log.
	pageRows = 50
	logRows  = 300
)

// dashboard serves the pages for people. It uses the same stores and gives the same
// orders as the API. Its state is a cache that may be lost.
type dashboard struct {
	edge      *edge.Server
	deps      Deps
	sessions  *sessions
	audit     *audit
	orders    *tree
	builds    *builds
	store     Dashboard
	ring      *edge.Ring
	history   *history
	front     string // the page that a login leads to
	templates map[string]*template.Template
	assets    map[string]asset
	version   string // of the assets
	places    chan struct{}
	logins    *edge.Share // requests whose login is being read
	live      *live
	known     *lastKnown

	fleet     memo[[]store.FleetSummary]
	durations memo[map[store.Platform]store.Durations]
}

// page is one page of the dashboard.
type page struct {
	name  string // of its file, and of its item in the navigation
	title string
	// load reads the page's data. Equal views get equal data, because viewers share
	// it.
	load func(ctx context.Context, v *view) (any, error)
}

// view is a request for a page: its id, its query, and the visitor's role.
type view struct {
	page  *page
	id    string
	query url.Values
	Admin bool   // may do what needs the admin key
	Host  string // the scheme and host that the browser uses
}

func (v *view) key() string {
	return fmt.Sprint(v.page.name, "\x00", v.id, "\x00", v.query.Encode(), "\x00", v.Admin, v.Host)
}

// data returns the part of key that the page's data depends on.
func (v *view) data() string { return fmt.Sprint(v.page.name, "\x00", v.id, "\x00", v.query.Encode()) }

// pageParams names the parameters that each page reads. Others do not make another view,
// because each view costs memory.
var pageParams = map[string][]string{ //nolint:gochecknoglobals // a table
	"fleet": {"q", "state", "platform", "sort", "after", "after_id"}, "queue": {"after", "before"},
	"builds": {"platform", "state", "age", "label", "before"}, "log": {"before", "line"}, "order": {"path", "action"},
	"throttle": {"q", "after", "after_id"}, "deployments": {"before"}, "deployment": {"after", "after_id"}, "audit": {"q", "before"},
}

// Get returns a parameter of the query, which must be in pageParams.
func (v *view) Get(name string) string {
	if !slices.Contains(pageParams[v.page.name], name) {
		panic("the page " + v.page.name + " reads the parameter " + name + ", which pageParams lacks")
	}
	return v.query.Get(name)
}

// Filtered reports whether the query has any parameter.
func (v *view) Filtered() bool { return len(v.query) > 0 }

// With returns the query with new values for some names; "" removes a name. It drops
// the list position, because a changed filter begins at the first page.
func (v *view) With(pairs ...string) string {
	q := maps.Clone(v.query)
	for _, name := range []string{"after", "after_id", "before", "done"} {
		q.Del(name)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if q.Del(pairs[i]); pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return "?" + q.Encode()
}

// screen is the data for the templates.
type screen struct {
	Title, Nav string
	Who        *session
	View       *view
	Page       any
	// Asof is when reading Page began. Stale says why Page is old, or why there is none:
	// then Asof is zero.
	Asof    time.Time
	Stale   string
	Away    bool   // the page could not be read yet
	Done    string // result of the last act
	Path    string // the page with its query, where acts return to
	Version string // of the assets
}

func newDashboard(s *Server, cfg Config, d Deps, b *builds, a *audit, t *tree) *dashboard {
	h := &dashboard{
		edge: s.Server, deps: d, sessions: newSessions(cfg, s.Keys), audit: a, orders: t, builds: b, store: d.Dashboard, ring: s.ring,
		history: s.history, places: make(chan struct{}, pagePlaces), logins: edge.NewShare("logins", 512, 64), live: newLive(), known: newLastKnown(), assets: map[string]asset{},
	}
	h.fleet = memo[[]store.FleetSummary]{life: time.Second}
	h.durations = memo[map[store.Platform]store.Durations]{life: 10 * time.Second}
	sum := sha256.New()
	for _, name := range []string{"dash.css", "dash.js", "icon.svg"} {
		raw := must(fs.ReadFile(dashFiles, "html/"+name))
		sum.Write(raw)
		h.assets[name] = asset{raw, map[string]string{"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}[name[strings.LastIndexByte(name, '.')+1:]]}
	}
	h.version = hex.EncodeToString(sum.Sum(nil))[:12]
	nav := navigation(cfg)
	h.front, h.templates = "/"+nav[0].Page, parsePages(nav)
	return h
}

// parsePages parses the pages. Each file is one page in the frame of layout.html.
func parsePages(nav []navItem) map[string]*template.Template {
	frame := template.Must(template.New("layout.html").Funcs(template.FuncMap{
		"ago": ago, "clock": clock, "span": span, "rough": rough, "size": bytesText, "percent": percent, "num": number3, "some": some,
		"plain": func(s any) string { return plain(fmt.Sprint(s)) }, "clip": clip, "ansi": ansi, "plural": plural, "lower": strings.ToLower,
		"since":  time.Since,
		"nav":    func() []navItem { return nav },
		"list":   func(v ...any) []any { return v },
		"escape": url.PathEscape, "query": url.QueryEscape,
		"reason": func(id string, required bool) reasonField { return reasonField{id, required} },
	}).ParseFS(dashFiles, "html/layout.html", "html/parts.html"))
	pages := map[string]*template.Template{}
	for _, path := range must(fs.Glob(dashFiles, "html/*.html")) {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "html/"), ".html")
		if name != "layout" && name != "parts" && name != "home" {
			pages[name] = template.Must(template.Must(frame.Clone()).ParseFS(dashFiles, path))
		}
	}
	return pages
}

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
	content []byte
	kind    string
}

// asset handles GET /assets/:name. The address of an asset changes with its content.
func (d *dashboard) asset(_ context.Context, c echo.Context) (any, error) {
	a, ok := d.assets[c.Param("name")]
	if !ok {
		return nil, store.NewError(store.NotFound, "Not found")
	}
	if c.QueryParam("v") == d.version {
		c.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	d.edge.ReplyBytes(c, http.StatusOK, []string{a.kind}, a.content)
	return nil, nil
}

// open serves a route that needs no session. It takes no place, because its handlers use
// memory only.
func (d *dashboard) open(c echo.Context, r *edge.Route) error {
	var reply any
	err := d.permit(c, r, false)
	if err == nil {
		reply, err = r.Handle(d.edge.WithCaller(c.Request().Context(), c), c)
	}
	return d.finish(c, reply, err)
}

// guarded serves a route that needs a session. The handler runs in a place; the form is
// read before it and the page is sent after it, because a client may be slow.
func (d *dashboard) guarded(c echo.Context, r *edge.Route) error {
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
func (d *dashboard) finish(c echo.Context, reply any, err error) error {
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
		d.edge.ReplyBytes(c, page.status, []string{"text/html; charset=utf-8"}, page.html)
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
func (d *dashboard) permit(c echo.Context, r *edge.Route, guarded bool) error {
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
	d.edge.Trust(c, time.Now())
	c.SetRequest(req.WithContext(edge.WithSession(req.Context(), &edge.Session{ID: s.ID, Role: string(s.Role), Name: s.Name, Admin: s.Admin()})))
	if r.Access == api.Operator && !s.Admin() {
		return store.NewError(store.Forbidden, "This needs a session with the admin key: log out, and log in with it")
	}
	return nil
}

// attempt runs the handler in one of the places.
func (d *dashboard) attempt(c echo.Context, r *edge.Route) (any, error) {
	patience := time.NewTimer(pagePatience)
	defer patience.Stop()
	select {
	case d.places <- struct{}{}:
		defer func() { <-d.places }()
	case <-patience.C:
		return nil, store.NewError(store.Overloaded, "Too many pages at once, try again")
	}
	return r.Handle(d.edge.WithCaller(c.Request().Context(), c), c)
}

// show returns the serve function of a page and of its stream.
func (d *dashboard) show(p *page) func(c echo.Context, r *edge.Route) error {
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
func (d *dashboard) whole(p *page) edge.Handler {
	return func(ctx context.Context, c echo.Context) (any, error) { return d.showPage(ctx, c, newView(c, p)) }
}

func newView(c echo.Context, p *page) *view {
	id := c.Param("id")
	if id == "" {
		id = c.Param("*")
	}
	q := url.Values{}
	for _, name := range pageParams[p.name] {
		if value := c.QueryParam(name); value != "" {
			q.Set(name, value)
		}
	}
	return &view{page: p, id: store.Text(id), query: q, Admin: sessionOf(c).Admin(), Host: c.Scheme() + "://" + c.Request().Host}
}

func (d *dashboard) showPage(ctx context.Context, c echo.Context, v *view) (any, error) {
	s, err := d.screen(ctx, v)
	name, status := v.page.name, http.StatusOK
	switch {
	case isAway(err):
		s = &screen{Title: v.page.title, Nav: v.page.name, View: v, Stale: awayText, Away: true}
		name, status = "away", http.StatusServiceUnavailable
		c.Response().Header().Set("Retry-After", "5")
	case err != nil:
		return nil, err
	}
	s.Who, s.Done = sessionOf(c), doneTexts[c.Request().URL.Query().Get("done")]
	s.Path = c.Request().URL.Path + v.With()
	return d.render(c, status, name, s)
}

// isAway reports whether a page can't be read now, but can be later.
func isAway(err error) bool { return store.IsUnavailable(err) || errors.Is(err, errSlowPage) }

const awayText = "The database is not available. What was accepted is kept."

// screen reads the data of v. During a database outage it returns the last data read.
func (d *dashboard) screen(ctx context.Context, v *view) (*screen, error) {
	s := &screen{Title: v.page.title, Nav: v.page.name, View: v, Asof: time.Now(), Version: d.version}
	reading, cancel := context.WithTimeoutCause(ctx, pageLimit, errSlowPage)
	defer cancel()
	data, err := v.page.load(reading, v)
	if err == nil {
		d.known.keep(v.data(), data, s.Asof)
		s.Page = data
		return s, nil
	}
	if errors.Is(context.Cause(reading), errSlowPage) {
		err = errSlowPage
	}
	data, at, ok := d.known.of(v.data())
	if !ok || !isAway(err) {
		return nil, err
	}
	s.Page, s.Asof, s.Stale = data, at, awayText
	return s, nil
}

var errSlowPage = store.NewError(store.Unavailable, "The page took too long to read")

// rendered is a page to be sent.
type rendered struct {
	status int
	html   []byte
}

func (d *dashboard) render(c echo.Context, status int, name string, s *screen) (any, error) {
	s.Version = d.version
	if s.Who == nil {
		s.Who = sessionOf(c)
	}
	var b bytes.Buffer
	if err := d.templates[name].ExecuteTemplate(&b, "layout.html", s); err != nil {
		return nil, fmt.Errorf("making the page %s: %w", name, err)
	}
	return rendered{status, b.Bytes()}, nil
}

// errorPage renders an error as a page, and logs it.
func (d *dashboard) errorPage(c echo.Context, err error) (any, error) {
	p, retry := edge.ProblemOf(err, edge.RequestID(c))
	d.edge.LogError(c, err, p.Status, c.Request().Context().Err() != nil)
	if retry > 0 {
		c.Response().Header().Set("Retry-After", fmt.Sprint(int(retry.Seconds())+1))
	}
	back := ownPath(c.Request().PostForm.Get("back"), "/") // a refused body is never read
	return d.render(c, p.Status, "error", &screen{Title: p.Title, Path: back, Page: p})
}

// memo caches a value for a short time, shared by all callers.
type memo[T any] struct {
	mu   sync.Mutex
	life time.Duration
	at   time.Time
	v    T
}

func (m *memo[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.at) < m.life {
		return m.v, nil
	}
	v, err := read(ctx)
	if err == nil {
		m.v, m.at = v, time.Now()
	}
	return v, err
}

// lastKnown keeps the last data of views for a database outage.
type lastKnown struct {
	mu    sync.Mutex
	views map[string]knownView
}

type knownView struct {
	data any
	at   time.Time
}

// maxKnown is how many views are kept. The oldest one is dropped first.
const maxKnown = 64

func newLastKnown() *lastKnown { return &lastKnown{views: map[string]knownView{}} }

// keep keeps data, whose reading began at, unless newer data is kept already.
func (l *lastKnown) keep(key string, data any, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, known := l.views[key]
	if was.at.After(at) {
		return
	}
	if !known && len(l.views) >= maxKnown {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(l.views)), func(a, b string) int { return l.views[a].at.Compare(l.views[b].at) })
		delete(l.views, oldest)
	}
	l.views[key] = knownView{data, at}
}

func (l *lastKnown) of(key string) (any, time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.views[key]
	return v.data, v.at, ok
}

// nodes returns the nodes of n's tree that f selects.
func nodes(n *api.TreeNode, f func(*api.TreeNode) bool) (found []*api.TreeNode) {
	if f(n) {
		found = append(found, n)
	}
	for i := range n.Children {
		found = append(found, nodes(&n.Children[i], f)...)
	}
	return found
}
